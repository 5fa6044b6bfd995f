"""Prefixes have names that change with everything a provider's cache looks at, and with nothing else."""

from __future__ import annotations

from typing import Any

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
