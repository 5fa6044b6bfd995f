"""Answers told as events, and events put together to answers: each undoes the other, and nothing is lost."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.core.sse import EventSplitter, event_data
from proxy.dialects import DIALECTS
from proxy.dialects.answer_events import answer_events, tells_events
from proxy.dialects.assembled_answer import assembler, error_answer

USAGE = {
    "prompt_tokens": 9,
    "completion_tokens": 4,
    "total_tokens": 13,
    "prompt_tokens_details": {"cached_tokens": 0},
}
LOGPROBS = {
    "content": [{"token": "Hi", "logprob": -0.25, "bytes": [72], "top_logprobs": []}],
    "refusal": None,
}
CALLS = [
    {"id": "call_1", "type": "function", "function": {"name": "look", "arguments": '{"at": "sky"}'}},
    {"id": "call_2", "type": "custom", "custom": {"name": "run", "input": "ls -l"}},
]


def chat(*messages: dict[str, Any], **others: Any) -> dict[str, Any]:
    choices = [
        {
            "index": index,
            "message": {"role": "assistant", "content": None, **message},
            "finish_reason": "tool_calls" if "tool_calls" in message else "stop",
            "logprobs": others.get("logprobs"),
        }
        for index, message in enumerate(messages)
    ]
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1_700_000_000,
        "model": "m",
        "service_tier": "default",
        "system_fingerprint": "fp",
        "choices": choices,
        "usage": USAGE,
    }


COMPLETION = {
    "id": "cmpl-1",
    "object": "text_completion",
    "created": 1_700_000_000,
    "model": "m",
    "choices": [
        {
            "text": "Once",
            "index": 0,
            "logprobs": {
                "tokens": ["Once"],
                "token_logprobs": [-1.5],
                "top_logprobs": None,
                "text_offset": [0],
            },
            "finish_reason": "length",
        },
        {"text": "Twice", "index": 1, "logprobs": None, "finish_reason": "stop"},
    ],
    "usage": USAGE,
}
RESPONSE = {
    "id": "resp_1",
    "object": "response",
    "created_at": 1_700_000_000,
    "status": "completed",
    "error": None,
    "incomplete_details": None,
    "model": "m",
    "output": [
        {
            "id": "rs_1",
            "type": "reasoning",
            "summary": [{"type": "summary_text", "text": "Thought."}],
            "content": [{"type": "reasoning_text", "text": "Long thought."}],
        },
        {
            "id": "msg_1",
            "type": "message",
            "status": "completed",
            "role": "assistant",
            "content": [
                {
                    "type": "output_text",
                    "text": "Hi",
                    "annotations": [{"type": "url_citation", "url": "https://example.org", "title": "t"}],
                    "logprobs": [],
                },
                {"type": "refusal", "refusal": "No."},
            ],
        },
        {
            "id": "fc_1",
            "type": "function_call",
            "status": "completed",
            "call_id": "call_1",
            "name": "look",
            "arguments": "{}",
        },
        {"id": "ws_1", "type": "web_search_call", "status": "completed", "action": {"type": "search"}},
    ],
    "usage": {"input_tokens": 9, "output_tokens": 4, "total_tokens": 13},
}
MESSAGE = {
    "id": "msg_01",
    "type": "message",
    "role": "assistant",
    "model": "claude",
    "content": [
        {"type": "thinking", "thinking": "Hm.", "signature": "sig"},
        {"type": "redacted_thinking", "data": "x=="},
        {
            "type": "text",
            "text": "Hi",
            "citations": [{"type": "char_location", "cited_text": "c", "document_index": 0}],
        },
        {"type": "tool_use", "id": "toolu_1", "name": "look", "input": {"at": ["sky", 1.5, None]}},
    ],
    "stop_reason": "tool_use",
    "stop_sequence": None,
    "usage": {
        "input_tokens": 9,
        "cache_read_input_tokens": 0,
        "output_tokens": 4,
        "service_tier": "standard",
    },
}
ANSWERS: list[tuple[str, dict[str, Any]]] = [
    ("chat", chat({"content": "Hello"})),
    ("chat", chat({"content": "Hi", "refusal": None, "annotations": []}, logprobs=LOGPROBS)),
    ("chat", chat({"tool_calls": CALLS})),
    ("chat", chat({"refusal": "I will not."})),
    ("chat", chat({"content": "So", "reasoning_content": "Think."})),
    ("chat", chat({"content": "One"}, {"content": "Two"}, {"content": "\U0001f600 \u00e9 \ud800"})),
    ("chat", chat({"content": ""})),
    ("completions", COMPLETION),
    ("responses", RESPONSE),
    (
        "responses",
        {**RESPONSE, "status": "incomplete", "incomplete_details": {"reason": "max_output_tokens"}},
    ),
    ("messages", MESSAGE),
    ("messages", {**MESSAGE, "content": [{"type": "text", "text": ""}], "stop_reason": "end_turn"}),
]


def told(name: str, answer: dict[str, Any], includes_usage: bool = True) -> bytes:
    events = answer_events(name, json.dumps(answer).encode(), includes_usage)
    assert events is not None
    return events


def assembled(name: str, stream: bytes, cuts: list[int]) -> Any:
    """Put a stream together that comes in pieces cut at these places."""
    whole, splitter = assembler(name), EventSplitter()
    assert whole is not None
    edges = [0, *sorted(cut % (len(stream) + 1) for cut in cuts), len(stream)]
    for begin, end in pairwise(edges):
        for event in splitter.feed(stream[begin:end]):
            whole.take(event)
    body = whole.body()
    return None if body is None else json.loads(body)


@pytest.mark.parametrize(("name", "answer"), ANSWERS)
def test_what_is_told_in_events_is_the_same_answer_put_together(name: str, answer: dict[str, Any]) -> None:
    assert assembled(name, told(name, answer), []) == answer


@pytest.mark.parametrize(("name", "answer"), ANSWERS)
def test_the_dialect_reads_the_events_as_its_own(name: str, answer: dict[str, Any]) -> None:
    dialect = next(each for each in DIALECTS if each.name == name)
    facts = [dialect.read_event(event) for event in EventSplitter().feed(told(name, answer))]
    body = dialect.read_body(json.dumps(answer).encode())
    assert facts[-1].terminal
    assert not any(fact.error for fact in facts)
    assert [fact.finish_reason for fact in facts if fact.finish_reason][-1] in {
        choice["finish_reason"] for choice in answer.get("choices", ())
    } | {body.finish_reason}
    usages = [fact.usage for fact in facts if fact.usage is not None]
    assert usages[-1] == body.usage
    says = [event.count(b"_tokens") for event in EventSplitter().feed(told(name, answer, False))]
    assert any(fact.first_content for fact in facts) != body.empty
    assert name in ("responses", "messages") or sum(says) == 0


def test_every_event_of_a_chat_tells_null_usage_where_usage_was_asked_for() -> None:
    events = [event_data(event) for event in EventSplitter().feed(told("chat", chat({"content": "Hi"})))]
    values = [json.loads(event) for event in events[:-1]]
    assert [value["usage"] for value in values[:-1]] == [None] * (len(values) - 1)
    assert values[-1] == {**values[-1], "choices": [], "usage": USAGE}


def test_responses_events_are_numbered_and_named() -> None:
    events = EventSplitter().feed(told("responses", RESPONSE))
    values = [json.loads(event_data(event)) for event in events]
    assert [value["sequence_number"] for value in values] == list(range(len(events)))
    assert all(
        event.startswith(b"event: " + value["type"].encode() + b"\n")
        for event, value in zip(events, values, strict=True)
    )
    assert values[0]["response"]["output"] == []


@pytest.mark.parametrize(
    ("name", "body"),
    [
        ("chat", b""),
        ("chat", b"[]"),
        ("chat", b'{"error":{"message":"no"},"choices":[{}]}'),
        ("chat", b'{"choices":[]}'),
        ("chat", b'{"choices":[{"message":7}]}'),
        ("chat", b'{"choices":[{"index":0,"message":{"tool_calls":[7]}}]}'),
        ("completions", b'{"choices":[{"text":null}]}'),
        ("responses", b'{"object":"response","status":"queued","output":[]}'),
        ("responses", b'{"object":"response","status":"completed","output":[7]}'),
        ("messages", b'{"type":"error","error":{}}'),
        ("messages", b'{"type":"message","content":["x"]}'),
        ("embeddings", b'{"data":[]}'),
    ],
)
def test_what_is_no_answer_is_not_told(name: str, body: bytes) -> None:
    assert answer_events(name, body, True) is None


def test_apis_without_streams_tell_nothing() -> None:
    assert [dialect.name for dialect in DIALECTS if not tells_events(dialect.name)] == [
        "embeddings",
        "moderations",
    ]
    assert assembler("embeddings") is None


@given(st.sampled_from(ANSWERS), st.lists(st.integers(0, 10_000), max_size=8))
def test_where_a_stream_is_cut_does_not_matter(named: tuple[str, dict[str, Any]], cuts: list[int]) -> None:
    name, answer = named
    assert assembled(name, told(name, answer), cuts) == answer


@given(st.sampled_from(ANSWERS), st.integers(0, 100))
def test_a_stream_that_was_not_finished_is_no_answer(named: tuple[str, dict[str, Any]], share: int) -> None:
    name, answer = named
    events = EventSplitter().feed(told(name, answer))
    dialect = next(each for each in DIALECTS if each.name == name)
    ends = [number for number, event in enumerate(events) if dialect.read_event(event).finish_reason]
    kept = events[: ends[0] * share // 100]
    assert assembled(name, b"".join(kept), []) is None


# --- what servers do otherwise ------------------------------------------------------------------------------


def stream_of(*values: Any) -> bytes:
    return (
        b"".join(b"data: " + json.dumps(value).encode() + b"\n\n" for value in values) + b"data: [DONE]\n\n"
    )


def delta(finish: str | None = None, **delta: Any) -> dict[str, Any]:
    return {"id": "c", "model": "m", "choices": [{"index": 0, "delta": delta, "finish_reason": finish}]}


def test_a_text_in_many_pieces_is_one() -> None:
    stream = stream_of(delta(role="assistant", content=""), *[delta(content="ab")] * 500, delta("stop"))
    value = assembled("chat", stream, [])
    assert value["choices"] == [
        {"index": 0, "message": {"role": "assistant", "content": "ab" * 500}, "finish_reason": "stop"}
    ]


def test_repeated_roles_and_names_are_said_once() -> None:
    call = {"index": 0, "id": "c1", "type": "function", "function": {"name": "look", "arguments": "{"}}
    rest = {"index": 0, "id": "", "type": "function", "function": {"name": "look", "arguments": "}"}}
    stream = stream_of(
        delta(role="assistant", tool_calls=[call]),
        delta(role="assistant", tool_calls=[rest]),
        delta("tool_calls"),
    )
    message = assembled("chat", stream, [])["choices"][0]["message"]
    assert message["role"] == "assistant"
    assert message["tool_calls"] == [
        {"id": "c1", "type": "function", "function": {"name": "look", "arguments": "{}"}}
    ]
    assert message["content"] is None


def test_interleaved_calls_and_choices_find_their_places() -> None:
    def call(index: int, text: str) -> dict[str, Any]:
        return {"index": index, "function": {"arguments": text}}

    stream = stream_of(
        delta(tool_calls=[call(1, "b")]),
        delta(tool_calls=[call(0, "a")]),
        delta("tool_calls", tool_calls=[call(1, "B"), call(0, "A")]),
    )
    calls = assembled("chat", stream, [])["choices"][0]["message"]["tool_calls"]
    assert [each["function"]["arguments"] for each in calls] == ["aA", "bB"]


def test_padding_against_listeners_is_no_part_of_the_answer() -> None:
    assert "obfuscation" not in assembled("chat", stream_of({**delta("stop"), "obfuscation": "xx"}), [])


def test_odd_events_are_left_out() -> None:
    odd = [7, {"choices": 7}, {"choices": [7]}, {"choices": [{"index": "x"}]}]
    assert assembled("chat", stream_of(*odd, delta("stop", content="a")), [])["choices"][0]["index"] == 0


def test_an_error_event_is_an_error_answer() -> None:
    answer = error_answer(b'event: error\ndata: {"type":"error","error":{"type":"overloaded_error"}}\n\n')
    assert answer is not None
    assert (answer.status, json.loads(answer.body)["error"]["type"]) == (502, "overloaded_error")
    assert error_answer(b"event: error\ndata: oops\n\n") is None
