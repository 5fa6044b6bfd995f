"""Texts inside elements are found by their bytes and can be replaced in place."""

from __future__ import annotations

import json
from typing import Any

import pytest

from proxy.dialects.text_parts import quoted_text, text_parts, with_texts


def found(element: Any) -> list[tuple[Any, ...]]:
    raw = json.dumps(element).encode()
    for part in text_parts(raw):
        assert json.loads(raw[part.start : part.end]) == part.text(raw)
    return [(part.path, part.text(raw), part.result) for part in text_parts(raw)]


@pytest.mark.parametrize(
    ("element", "expected"),
    [
        ({"role": "user", "content": "x"}, [(("content",), "x", None)]),
        (
            {
                "role": "user",
                "content": [{"type": "text", "text": "a"}, {"type": "image_url", "image_url": {}}],
            },
            [(("content", 0, "text"), "a", None)],
        ),
        ({"role": "tool", "tool_call_id": "a", "content": "r"}, [(("content",), "r", 0)]),
        ({"role": "function", "name": "f", "content": "r"}, [(("content",), "r", 0)]),
        ({"type": "function_call_output", "call_id": "a", "output": "r"}, [(("output",), "r", 0)]),
        (
            {"type": "custom_tool_call_output", "output": [{"type": "input_text", "text": "r"}]},
            [(("output", 0, "text"), "r", 0)],
        ),
        (
            {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "a"}]},
            [(("content", 0, "text"), "a", None)],
        ),
        (
            {
                "role": "user",
                "content": [
                    {"type": "tool_result", "tool_use_id": "a", "content": "r"},
                    {"type": "tool_result", "tool_use_id": "n"},
                    {"type": "tool_result", "content": [{"type": "text", "text": "s"}, {"type": "image"}]},
                    {"type": "text", "text": "stop"},
                ],
            },
            [
                (("content", 0, "content"), "r", 0),
                (("content", 2, "content", 0, "text"), "s", 2),
                (("content", 3, "text"), "stop", None),
            ],
        ),
        ({"role": "assistant", "content": None, "tool_calls": [{"function": {"arguments": "{}"}}]}, []),
        ({"role": "assistant", "content": [{"type": "thinking", "thinking": "t", "signature": "s"}]}, []),
        ({"type": "reasoning", "summary": [{"type": "summary_text", "text": "t"}]}, []),
        ({"type": "function_call", "call_id": "a", "arguments": "{}"}, []),
        ({"type": "brand_new", "content": "x", "text": "y"}, []),
        ({"role": "user", "content": [{"type": "text", "text": 5}, {"type": "text"}, 7, "x"]}, []),
        ({"role": "user", "content": 5}, []),
        (5, []),
        ([], []),
    ],
)
def test_finds_what_somebody_wrote(element: Any, expected: list[tuple[Any, ...]]) -> None:
    assert found(element) == expected


def test_replacing_a_text_leaves_every_other_byte() -> None:
    raw = (
        b'{ "role" :"user","content":[{"type":"text","text":"\\u00e9" , "x":1.0},{"type":"text","text":"b"}]}'
    )
    first, second = text_parts(raw)
    assert with_texts(raw, {}) == raw
    assert with_texts(raw, {first: 'é"', second: "c"}) == raw.replace(
        b'"\\u00e9"', '"é\\""'.encode()
    ).replace(b'"b"', b'"c"')


@pytest.mark.parametrize("text", ["", "plain", 'q"\\\n\t\x00', "é你😀", "half \ud83d of", "\ude00"])
def test_any_text_can_be_spelled(text: str) -> None:
    raw = quoted_text(text)
    raw.decode("utf-8")
    assert json.loads(raw) == text
