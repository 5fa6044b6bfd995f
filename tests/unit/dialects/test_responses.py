from __future__ import annotations

import json
from typing import Any

import pytest

from proxy.core.document import Document
from proxy.core.usage import Usage
from proxy.dialects.dialect import NOTHING, BodyFacts, EventFacts
from proxy.dialects.responses import RESPONSES


def event(kind: str, **fields: Any) -> bytes:
    data = json.dumps({"type": kind, "sequence_number": 1, **fields}, separators=(",", ":"))
    return f"event: {kind}\ndata: {data}\n\n".encode()


def body(**fields: Any) -> Document:
    return Document.parse(json.dumps(fields).encode())


USAGE = {
    "input_tokens": 20,
    "input_tokens_details": {"cached_tokens": 8, "cache_write_tokens": 2},
    "output_tokens": 7,
    "output_tokens_details": {"reasoning_tokens": 6},
    "total_tokens": 27,
}
READ_USAGE = Usage(20, 7, 8, 2, 6)
MESSAGE = {"type": "message", "content": [{"type": "output_text", "text": "hi"}]}


@pytest.mark.parametrize(
    "raw",
    [
        event("response.output_text.delta", delta="hi"),
        event("response.reasoning_text.delta", delta="hm"),
        event("response.reasoning_summary_text.delta", delta="hm"),
        event("response.function_call_arguments.delta", delta="{"),
        event("response.refusal.delta", delta="no"),
        event("response.audio.delta", delta="AAAA"),
        event("response.output_text.done", text="hi"),
        event("response.output_item.added", item={"type": "function_call", "name": "f", "arguments": ""}),
        event("response.output_item.done", item=MESSAGE),
        event("response.image_generation_call.partial_image", partial_image_b64="AAAA"),
        b'data: {"type":"response.output_text.delta","delta":"hi"}\n\n',
        b'event: response.output_text.delta\ndata: {"delta":"hi"}\n\n',
    ],
)
def test_content_of_every_kind_is_first_content(raw: bytes) -> None:
    assert RESPONSES.read_event(raw) == EventFacts(first_content=True)


@pytest.mark.parametrize(
    "raw",
    [
        event("response.created", response={"status": "in_progress", "error": None, "usage": None}),
        event("response.queued", response={}),
        event("response.output_item.added", item={"type": "message", "content": []}),
        event("response.output_item.added", item={"type": "reasoning", "content": None, "summary": []}),
        event("response.output_item.added", item={"type": "web_search_call", "status": "in_progress"}),
        event("response.content_part.added", part={"type": "output_text", "text": ""}),
        event("response.output_text.delta", delta=""),
        event("response.web_search_call.searching"),
        event("keepalive"),
        b": ping\n\n",
        b"data: null\n\n",
        b"data: {broken\n\n",
        b"",
    ],
)
def test_what_shows_nothing_is_nothing(raw: bytes) -> None:
    assert RESPONSES.read_event(raw) == NOTHING


@pytest.mark.parametrize("status", ["completed", "incomplete", "failed"])
def test_the_end_carries_status_and_usage(status: str) -> None:
    raw = event(f"response.{status}", response={"status": status, "usage": USAGE, "output": []})
    facts = RESPONSES.read_event(raw)
    assert facts == EventFacts(
        finish_reason=status, terminal=True, usage=READ_USAGE, error=status == "failed"
    )
    assert any(marker in raw for marker in RESPONSES.markers)


def test_an_answer_that_comes_whole_has_its_content_in_the_end() -> None:
    assert RESPONSES.read_event(event("response.completed", response={"output": [MESSAGE]})).first_content


def test_errors_and_done_are_read() -> None:
    flat = event("error", code="x", message="no", param=None)
    nested = event("error", error={"code": "x", "message": "no"})
    for raw in (flat, nested, b'data: {"error":{"message":"no"}}\n\n', b"event: error\ndata: oops\n\n"):
        assert RESPONSES.read_event(raw) == EventFacts(error=True)
        assert any(marker in raw for marker in RESPONSES.markers)
    assert RESPONSES.read_event(b"data: [DONE]\n\n") == EventFacts(terminal=True)


def test_plain_deltas_carry_no_marker() -> None:
    raw = event("response.output_text.delta", delta="hi", item_id="msg_1", logprobs=[])
    assert not any(marker in raw for marker in RESPONSES.markers)


def test_an_error_event_has_both_shapes() -> None:
    raw = RESPONSES.error_event("broke", "upstream_closed", 7)
    assert raw.startswith(b"event: error\ndata: {")
    data = json.loads(raw.split(b"data: ")[1])
    assert data["type"] == "error"
    assert data["sequence_number"] == 7
    assert data["code"] == data["error"]["code"] == "upstream_closed"
    assert RESPONSES.read_event(raw) == EventFacts(error=True)
    assert b"sequence_number" not in RESPONSES.error_event("broke", "c", None)


def test_bodies_are_read() -> None:
    whole = {"status": "completed", "error": None, "output": [MESSAGE], "usage": USAGE}
    assert RESPONSES.read_body(json.dumps(whole).encode()) == BodyFacts(READ_USAGE, "completed")
    cut = {"status": "incomplete", "output": [{"type": "reasoning", "content": [{"text": "hm"}]}]}
    assert RESPONSES.read_body(json.dumps(cut).encode()) == BodyFacts(finish_reason="incomplete", empty=True)
    failed = RESPONSES.read_body(b'{"status":"failed","error":{"code":"server_error"}}')
    assert failed.error
    assert RESPONSES.read_body(b'{"status":"queued","output":[]}') == BodyFacts()
    assert RESPONSES.read_body(b"[1]") == BodyFacts()


def test_the_cap_is_the_same_for_every_model_and_stop_is_unknown() -> None:
    assert RESPONSES.cap_field(body(), "gpt-4o", "openai") == "max_output_tokens"
    assert RESPONSES.stop_field is None
    document = body(stream=True)
    assert RESPONSES.ask_usage(document) is document


def test_reasoning_is_what_the_request_says_or_its_model() -> None:
    assert RESPONSES.is_reasoning(body(reasoning={"effort": "low"}), "house-model")
    assert not RESPONSES.is_reasoning(body(reasoning={"effort": "low"}), "gpt-4o"), "it takes no effort"
    assert not RESPONSES.is_reasoning(body(reasoning={"effort": "none"}), "gpt-5.1")
    assert RESPONSES.is_reasoning(body(), "gpt-5.1")


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"input": "hi"}, None),
        ({"input": [{"role": "user", "content": "hi"}]}, None),
        (
            {"input": [{"type": "function_call_output", "call_id": "1", "output": "4"}]},
            "tool loop in progress",
        ),
        ({"input": [{"type": "computer_call_output"}]}, "tool loop in progress"),
        ({"input": [{"type": "mcp_approval_response"}]}, "tool loop in progress"),
        ({"input": "hi", "previous_response_id": "resp_1"}, "conversation in progress"),
        ({"input": "hi", "conversation": {"id": "conv_1"}}, "conversation in progress"),
        ({"input": "hi", "previous_response_id": None}, None),
    ],
)
def test_loops_and_context_at_the_server_mean_that_someone_waits(
    fields: dict[str, Any], reason: str | None
) -> None:
    assert RESPONSES.waits_for_person(body(**fields)) == reason
