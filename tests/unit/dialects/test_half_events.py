"""Wherever an event breaks off, what is sent after it makes an event that every reader can read."""

from __future__ import annotations

import json

import pytest

from proxy.core.sse import EventSplitter, event_data, event_name
from proxy.dialects.chat import CHAT
from proxy.dialects.dialect import Dialect
from proxy.dialects.half_events import MAX_HALF_BYTES, ending
from proxy.dialects.messages import MESSAGES
from proxy.dialects.responses import RESPONSES

DATA = json.dumps(
    {
        "id": "a\"b\\",
        "list": [1, -2.5, 3e-7, True, False, None, [], {}, {"x": [{}]}],
        "choices": [{"delta": {"content": "h\u00e9\u4f60\U0001f600\n{[}\\u\ud800"}, "finish_reason": None}],
        "": {"\u00e9": 10},
    },
    ensure_ascii=True,
)  # fmt: skip
RAW = '{"t":"h\u00e9\u4f60\U0001f600\ud7ff\U0010ffff","n":{"m":[0.5,{"k":true}]}}'
TEXTS = {
    "escaped": DATA.encode(),
    "raw": RAW.encode(),
    "spaced": json.dumps({"a": [1, {"b": "c"}]}, indent=1).encode(),
}
SHAPES = {
    "plain": b"data: %b\n\n",
    "tight": b"data:%b\n\n",
    "named": b"event: response.output_text.delta\ndata: %b\n\n",
    "after a comment": b": hello\nid: 7\ndata: %b\n\n",
    "CR LF": b"event: x\r\ndata: %b\r\n\r\n",
}
DIALECTS = {"chat": CHAT, "responses": RESPONSES, "messages": MESSAGES}


def events_after(half: bytes, dialect: Dialect) -> list[bytes]:
    error = dialect.error_event("it broke", "upstream_closed", 7)
    splitter = EventSplitter()
    events = splitter.feed(half + ending(half, error) + error)
    assert splitter.carry == b""
    assert events[-1].lstrip(b"\r\n") == error, "the error event is an event of its own"
    return [event for event in events[:-1] if event_data(event) or b"data" in event]


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("shape", SHAPES)
def test_every_cut_of_an_event_leaves_readable_events(shape: str, text: str, dialect: str) -> None:
    data = TEXTS[text].replace(b"\n", b"\ndata: ")
    event = SHAPES[shape] % data
    whole = json.loads(event_data(event))
    for end in range(1, len(event)):
        for ended in events_after(event[:end], DIALECTS[dialect]):
            if not event_data(ended) and not ended.startswith(b"data"):
                continue
            said = json.loads(event_data(ended))
            if said != whole:
                assert said["error"]["message"].startswith("it broke"), event[:end]
                if dialect != "chat":
                    assert event_name(ended) == b"error"


@pytest.mark.parametrize(
    "half", [b"", b"data: " + b"[" * MAX_HALF_BYTES, b"data: [DON", b"data: hello", b"data: {]"]
)
def test_what_cannot_be_completed_is_ended(half: bytes) -> None:
    assert ending(half, CHAT.error_event("it broke", "x", None)) == b"\n\n"
