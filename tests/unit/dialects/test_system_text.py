from __future__ import annotations

from typing import Any

import pytest

from proxy.core.document import Document
from proxy.dialects.system_text import has_system_text, with_instruction
from tests.unit.steps.contexts import body

TEXT = 'Be "brief".\né'
SPELLED = r"\n\nBe \"brief\".\né".encode()


def edited(raw: bytes, name: str = "chat", *, create: bool = False, model: str = "gpt-4o") -> bytes:
    document, _ = with_instruction(Document.parse(raw), name, TEXT, model, create=create)
    return document.to_bytes()


def reason(document: Document, name: str = "chat", *, create: bool = False) -> str:
    same, why = with_instruction(document, name, TEXT, "gpt-4o", create=create)
    assert same is document
    return why


@pytest.mark.parametrize(
    ("name", "raw", "mark"),
    [
        ("chat", b'{"messages":[ {"role":"system" , "content":"A\\u0042\\ud83d@"},{"role":"user"}]}', b"@"),
        ("responses", b'{"instructions" : "\\/@","input":"x"}', b"@"),
        ("responses", b'{"input":[{"role":"developer","content":"d@"},{"role":"user"}]}', b"@"),
        ("messages", b'{"system":"s@","messages":[]}', b"@"),
    ],
)
def test_text_gets_the_instruction_at_its_end_and_keeps_its_bytes(name: str, raw: bytes, mark: bytes) -> None:
    assert edited(raw, name) == raw.replace(mark, mark + SPELLED)


@pytest.mark.parametrize(
    ("name", "raw", "kind"),
    [
        ("chat", b'{"messages":[{"role":"system","content":[ {"type":"text","text":"a"}!]}]}', b"text"),
        ("responses", b'{"input":[{"role":"system","content":[{"text":"a"}! ]}]}', b"input_text"),
        ("messages", b'{"system":[{"type":"text","text":"a","cache_control":{}}!],"x":1}', b"text"),
    ],
)
def test_parts_get_a_part_behind_them(name: str, raw: bytes, kind: bytes) -> None:
    part = b',{"type":"%b","text":"%b"}' % (kind, SPELLED.removeprefix(rb"\n\n"))
    assert edited(raw.replace(b"!", b""), name) == raw.replace(b"!", part)


def test_the_last_of_the_leading_system_messages_is_the_place() -> None:
    messages = [
        {"role": "system", "content": "one"},
        {"role": "developer", "content": "two"},
        {"role": "user", "content": "hi"},
        {"role": "system", "content": "three"},
    ]
    document, why = with_instruction(body(messages=messages), "chat", "X", "m", create=False)
    assert [message["content"] for message in document.value("messages")] == [
        "one",
        "two\n\nX",
        "hi",
        "three",
    ]
    assert why == ""


@pytest.mark.parametrize(
    ("name", "fields"),
    [
        ("chat", {"messages": [{"role": "system", "content": "a\n\n" + TEXT}]}),
        ("chat", {"messages": [{"role": "system", "content": [{"type": "text", "text": TEXT}]}]}),
        ("messages", {"system": TEXT}),
        ("messages", {"system": [{"type": "text", "text": "a" + TEXT}]}),
        ("responses", {"instructions": TEXT}),
    ],
)
def test_what_ends_so_already_is_left_alone_without_a_reason(name: str, fields: dict[str, Any]) -> None:
    assert reason(body(**fields), name) == ""


def test_a_system_text_is_made_only_on_demand() -> None:
    user = [{"role": "user", "content": "hi"}]
    for name, fields in (("chat", {"messages": user}), ("messages", {"messages": user}), ("responses", {})):
        assert reason(body(**fields), name) == "there is no system text"
    raw = b'{"messages": [ {"role":"user"}]}'
    for model, role in (("gpt-4o", b"system"), ("o3", b"developer")):
        made = edited(raw, create=True, model=model)
        assert made.startswith(b'{"messages": [ {"role":"%b","content":"Be' % role)
        assert made.endswith(b'},{"role":"user"}]}')
    assert edited(b'{"input":"x"}', "responses", create=True).startswith(b'{"input":"x","instructions":"Be')
    assert edited(b'{"system":""}', "messages", create=True).startswith(b'{"system":"Be')


@pytest.mark.parametrize("prompt", [{"id": "pmpt_1"}, "x"])
def test_a_stored_prompts_instructions_are_not_replaced(prompt: object) -> None:
    assert reason(body(prompt=prompt, input="x"), "responses", create=True).startswith("a stored prompt")


@pytest.mark.parametrize("content", [7, None, {"text": "a"}, True])
def test_other_types_are_the_upstreams_to_judge(content: object) -> None:
    document = body(messages=[{"role": "system", "content": content}])
    assert reason(document).startswith("the system text is neither")
    assert reason(body(system=content or 7), "messages").startswith("the system text is neither")


def test_without_messages_there_is_nowhere_to_put_one() -> None:
    for raw in (b"{}", b'{"messages":[]}', b'{"messages":"x"}'):
        assert reason(Document.parse(raw), create=True) == "there are no messages"


def test_apis_without_system_text_say_so() -> None:
    named = ("chat", "completions", "embeddings", "messages", "moderations", "responses")
    assert [name for name in named if has_system_text(name)] == ["chat", "messages", "responses"]
