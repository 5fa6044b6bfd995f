"""The official SDKs make of the events that Weir tells an answer in what they make of the answer itself."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from proxy.dialects.answer_events import answer_events
from tests.real.processes import run_python
from tests.support.raw_upstream import Call, RawUpstream

USAGE = {"prompt_tokens": 9, "completion_tokens": 4, "total_tokens": 13}


def _chat(message: dict[str, Any], reason: str, logprobs: Any = None) -> dict[str, Any]:
    choice = {"index": 0, "message": message, "finish_reason": reason, "logprobs": logprobs}
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1_700_000_000,
        "model": "gpt-4o-mini",
        "choices": [choice],
        "usage": USAGE,
    }


CHATS = [
    _chat({"role": "assistant", "content": "Hello, wörld 🌊", "refusal": None}, "stop"),
    _chat(
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [
                {"id": "call_1", "type": "function", "function": {"name": "look", "arguments": '{"at":1}'}},
                {"id": "call_2", "type": "function", "function": {"name": "wait", "arguments": "{}"}},
            ],
        },
        "tool_calls",
    ),
    _chat(
        {"role": "assistant", "content": "Hi", "refusal": None},
        # At "length" the SDK itself refuses to put a stream together.
        "stop",
        {
            "content": [{"token": "Hi", "logprob": -0.25, "bytes": [72, 105], "top_logprobs": []}],
            "refusal": None,
        },
    ),
]
COMPLETION = {
    "id": "cmpl-1",
    "object": "text_completion",
    "created": 1_700_000_000,
    "model": "gpt-4o-mini",
    "choices": [{"text": "Once upon", "index": 0, "logprobs": None, "finish_reason": "length"}],
    "usage": USAGE,
}
RESPONSE = {
    "id": "resp_1",
    "object": "response",
    "created_at": 1_700_000_000,
    "status": "completed",
    "error": None,
    "incomplete_details": None,
    "instructions": None,
    "metadata": {},
    "model": "gpt-4o-mini",
    "parallel_tool_calls": True,
    "temperature": 1.0,
    "top_p": 1.0,
    "tool_choice": "auto",
    "tools": [],
    "output": [
        {"id": "rs_1", "type": "reasoning", "summary": [{"type": "summary_text", "text": "Thought."}]},
        {
            "id": "msg_1",
            "type": "message",
            "status": "completed",
            "role": "assistant",
            "content": [{"type": "output_text", "text": "Hello", "annotations": [], "logprobs": []}],
        },
        {
            "id": "fc_1",
            "type": "function_call",
            "status": "completed",
            "call_id": "call_1",
            "name": "look",
            "arguments": '{"at":1}',
        },
    ],
    "usage": {
        "input_tokens": 9,
        "input_tokens_details": {"cached_tokens": 0},
        "output_tokens": 4,
        "output_tokens_details": {"reasoning_tokens": 2},
        "total_tokens": 13,
    },
}
MESSAGE = {
    "id": "msg_01",
    "type": "message",
    "role": "assistant",
    "model": "claude-sonnet-5-5",
    "content": [
        {"type": "thinking", "thinking": "Hm.", "signature": "sig"},
        {"type": "text", "text": "Hello", "citations": None},
        {"type": "tool_use", "id": "toolu_1", "name": "look", "input": {"at": ["sky", 1.5]}},
    ],
    "stop_reason": "tool_use",
    "stop_sequence": None,
    "usage": {"input_tokens": 9, "output_tokens": 4},
}


def _serve(call: Call) -> None:
    known: dict[str, tuple[str, dict[str, Any]]] = {
        "/v1/chat/completions": ("chat", CHATS[int(call.header("x-case") or 0)]),
        "/v1/completions": ("completions", COMPLETION),
        "/v1/responses": ("responses", RESPONSE),
        "/v1/messages": ("messages", MESSAGE),
    }
    name, answer = known[call.target.decode()]
    body = json.dumps(answer).encode()
    if not json.loads(call.body).get("stream"):
        call.json(body)
        return
    events = answer_events(name, body, includes_usage=True)
    assert events is not None
    call.stream_head()
    call.chunk(events)
    call.end_chunks()


def _shown(home: Path) -> dict[str, Any]:
    with RawUpstream(_serve) as upstream:
        variables = {"OPENAI_BASE_URL": upstream.url, "OPENAI_API_KEY": "sk-test-of-a-client"}
        printed = run_python("openai-3", "accumulating.py", ["simulator"], home, variables)
    seen: dict[str, Any] = json.loads(printed.rstrip().rpartition("\n")[2])
    return seen


def _lacks(whole: Any, streamed: Any, where: str = "") -> list[str]:
    """Return where a streamed answer says something else than a whole one; what an SDK adds is its own."""
    if isinstance(whole, dict) and isinstance(streamed, dict):
        return [
            lack
            for key, value in whole.items()
            for lack in _lacks(value, streamed.get(key), f"{where}.{key}")
        ]
    if isinstance(whole, list) and isinstance(streamed, list) and len(whole) == len(streamed):
        pairs = enumerate(zip(whole, streamed, strict=True))
        return [lack for number, pair in pairs for lack in _lacks(*pair, f"{where}[{number}]")]
    return [] if whole == streamed else [f"{where}: {whole!r} became {streamed!r}"]


def test_the_official_sdks_put_the_same_answers_together(home: Path) -> None:
    seen = _shown(home)
    shown = [*seen["chats"], seen["completions"], seen["responses"], seen["messages"]]
    assert len(shown) == 6
    for each in shown:
        assert _lacks(each["whole"], each["streamed"]) == []
    assert seen["responses"]["kinds"][0] == "response.created"
