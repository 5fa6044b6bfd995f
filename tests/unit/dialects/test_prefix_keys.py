"""Prefixes have names that change with everything a provider's cache looks at, and with nothing else."""

from __future__ import annotations

from typing import Any

import pytest

from proxy.core.document import Document
from proxy.dialects.chat import CHAT
from proxy.dialects.conversation import read_conversation
from proxy.dialects.messages import MESSAGES
from proxy.dialects.prefix_keys import prefix_keys
from tests.unit.steps.contexts import body

USER = {"role": "user", "content": "u"}
ANSWER = {"role": "assistant", "content": "a"}


def keys(dialect: Any = CHAT, **fields: Any) -> tuple[bytes, ...]:
    document: Document = body(**fields)
    conversation = read_conversation(document, dialect)
    assert conversation is not None
    return prefix_keys(document, conversation)


def test_a_conversation_that_goes_on_keeps_its_names() -> None:
    before = keys(messages=[USER, ANSWER], temperature=1)
    after = keys(messages=[USER, ANSWER, USER], stream=True)
    assert after[:2] == before
    assert len(set(after)) == 3


def test_another_beginning_changes_all_names() -> None:
    other = {"role": "user", "content": "v"}
    assert set(keys(messages=[USER, ANSWER])).isdisjoint(keys(messages=[other, ANSWER]))


def test_tools_and_system_text_belong_to_the_prefix() -> None:
    plain = keys(messages=[USER])
    assert keys(messages=[USER], tools=[{"type": "function"}]) != plain
    assert keys(MESSAGES, messages=[USER], system="x") != keys(MESSAGES, messages=[USER], system="y")


def test_two_elements_are_not_taken_for_one_that_holds_both() -> None:
    document = Document.parse(b'{"messages":["ab","c"]}')
    other = Document.parse(b'{"messages":["a","bc"]}')
    first, second = (read_conversation(each, CHAT) for each in (document, other))
    assert first is not None
    assert second is not None
    assert prefix_keys(document, first)[-1] != prefix_keys(other, second)[-1]


MARKS: list[dict[str, Any]] = [
    {"cache_control": {"type": "ephemeral"}},
    {"prompt_cache_breakpoint": {"mode": "explicit"}},
]


@pytest.mark.parametrize("mark", MARKS, ids=range(2))
def test_marks_that_move_from_turn_to_turn_change_no_name(mark: dict[str, Any]) -> None:
    plain = {"role": "user", "content": [{"type": "text", "text": 'u \\ "x"'}]}
    bare = {"role": "user", "content": 'u \\ "x"'}
    behind = {"role": "user", "content": [{"type": "text", "text": 'u \\ "x"', **mark}]}
    before = {"role": "user", "content": [{**mark, "type": "text", "text": 'u \\ "x"'}]}
    turned = {"role": "user", "content": [{"text": 'u \\ "x"', "type": "text", **mark}]}
    names = {keys(MESSAGES, messages=[each, ANSWER]) for each in (plain, bare, behind, before, turned)}
    assert len(names) == 1


def test_text_about_marks_is_text() -> None:
    about = [{"role": "user", "content": f'say "cache_control":{{"a":{number}}}'} for number in (1, 2)]
    first, second = (keys(MESSAGES, messages=[each]) for each in about)
    assert first != second


def test_two_blocks_are_not_one() -> None:
    one = {"role": "user", "content": [{"type": "text", "text": "ab"}]}
    two = {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}
    image = {"role": "user", "content": [{"type": "text", "text": "ab"}, {"type": "image_url"}]}
    assert len({keys(messages=[each]) for each in (one, two, image)}) == 3
