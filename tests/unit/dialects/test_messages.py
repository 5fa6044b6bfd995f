from __future__ import annotations

import json
from typing import Any

import pytest

from proxy.core.document import Document
from proxy.core.usage import Usage
from proxy.dialects.dialect import NOTHING, BodyFacts, EventFacts
from proxy.dialects.messages import MESSAGES


def event(kind: str, **fields: Any) -> bytes:
    return f"event: {kind}\ndata: {json.dumps({'type': kind, **fields})}\n\n".encode()


def delta(**fields: Any) -> bytes:
    return event("content_block_delta", index=0, delta=fields)


@pytest.mark.parametrize(
    "raw",
    [
        delta(type="text_delta", text="hi"),
        delta(type="thinking_delta", thinking="hm"),
        delta(type="input_json_delta", partial_json="{"),
        event("content_block_start", content_block={"type": "tool_use", "id": "t", "name": "f", "input": {}}),
        event("content_block_start", content_block={"type": "text", "text": "hi"}),
    ],
)
def test_content_of_every_kind_is_first_content(raw: bytes) -> None:
    assert MESSAGES.read_event(raw) == EventFacts(first_content=True)
    assert not any(marker in raw for marker in MESSAGES.markers)


@pytest.mark.parametrize(
    "raw",
    [
        event("ping"),
        delta(type="signature_delta", signature="abc"),
        delta(type="citations_delta", citation={"cited_text": "x"}),
        delta(type="text_delta", text=""),
        delta(type="input_json_delta", partial_json=""),
        event("content_block_start", content_block={"type": "text", "text": ""}),
        event("content_block_stop", index=0),
        event("message_start", message={"id": "msg"}),
        event("vendor_event", note="x"),
        b": hb\n\n",
        b"data: null\n\n",
        b"data: {broken\n\n",
    ],
)
def test_what_shows_nothing_is_nothing(raw: bytes) -> None:
    assert MESSAGES.read_event(raw) == NOTHING


def test_the_whole_prompt_is_what_was_read_written_and_neither() -> None:
    usage = {
        "input_tokens": 5,
        "cache_creation_input_tokens": 100,
        "cache_read_input_tokens": 1000,
        "output_tokens": 1,
    }
    facts = MESSAGES.read_event(event("message_start", message={"usage": usage}))
    assert facts == EventFacts(usage=Usage(1105, 1, 1000, 100))


def test_the_end_comes_in_two_events() -> None:
    last = event("message_delta", delta={"stop_reason": "max_tokens"}, usage={"output_tokens": 9})
    assert MESSAGES.read_event(last) == EventFacts(finish_reason="max_tokens", usage=Usage(None, 9))
    assert MESSAGES.read_event(event("message_stop")) == EventFacts(terminal=True)
    for raw in (last, event("message_stop")):
        assert any(marker in raw for marker in MESSAGES.markers)


def test_errors_are_errors() -> None:
    for raw in (event("error", error={"type": "overloaded_error"}), b"event: error\ndata: oops\n\n"):
        assert MESSAGES.read_event(raw) == EventFacts(error=True)
        assert any(marker in raw for marker in MESSAGES.markers)


def test_an_error_event_is_what_the_sdk_raises() -> None:
    raw = MESSAGES.error_event("broke", "upstream_closed", None)
    data = b'{"type":"error","error":{"type":"api_error","message":"broke (upstream_closed)"}}'
    assert raw == b"event: error\ndata: " + data + b"\n\n"
    assert MESSAGES.read_event(raw) == EventFacts(error=True)


def test_bodies_are_read() -> None:
    whole = {
        "type": "message",
        "content": [{"type": "text", "text": "hi"}],
        "stop_reason": "end_turn",
        "usage": {"input_tokens": 3, "output_tokens": 2},
    }
    assert MESSAGES.read_body(json.dumps(whole).encode()) == BodyFacts(Usage(3, 2), "end_turn")
    cut = {"content": [{"type": "thinking", "thinking": "hm"}], "stop_reason": "max_tokens"}
    assert MESSAGES.read_body(json.dumps(cut).encode()) == BodyFacts(finish_reason="max_tokens", empty=True)
    assert MESSAGES.read_body(b'{"type":"error","error":{"type":"api_error"}}') == BodyFacts(error=True)
    assert MESSAGES.read_body(b"") == BodyFacts()


def test_its_own_field_names_and_limits() -> None:
    document = Document.parse(
        b'{"max_tokens":5,"stream":true,"thinking":{"type":"enabled","budget_tokens":1024}}'
    )
    assert MESSAGES.cap_field(document, "claude", "anthropic") == "max_tokens"
    assert MESSAGES.stop_field == "stop_sequences"
    assert MESSAGES.refuses_blank_stop
    assert MESSAGES.is_reasoning(document, "claude")
    assert not MESSAGES.is_reasoning(Document.parse(b"{}"), "claude-thinking")
    assert MESSAGES.ask_usage(document) is document


@pytest.mark.parametrize(
    ("content", "waits"),
    [
        ("hi", False),
        ([{"type": "text", "text": "hi"}], False),
        (
            [{"type": "tool_result", "tool_use_id": "t", "content": "4"}, {"type": "text", "text": "go on"}],
            True,
        ),
        (None, False),
    ],
)
def test_tool_results_at_the_end_are_a_loop(content: object, waits: bool) -> None:
    messages = [{"role": "assistant", "content": "x"}, {"role": "user", "content": content}]
    document = Document.parse(json.dumps({"messages": messages}).encode())
    assert MESSAGES.waits_for_person(document) == ("tool loop in progress" if waits else None)
