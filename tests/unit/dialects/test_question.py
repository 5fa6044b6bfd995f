from __future__ import annotations

from typing import Any

import pytest

from proxy.core.document import Document
from proxy.dialects.question import last_question, shows_images
from tests.unit.steps.contexts import body

IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}


def user(content: Any) -> dict[str, Any]:
    return {"role": "user", "content": content}


CALL = {"role": "assistant", "content": None, "tool_calls": [{"id": "a"}]}
RESULT = {"role": "tool", "tool_call_id": "a", "content": "42"}


def test_the_last_message_of_a_person_is_the_question() -> None:
    document = body(messages=[{"role": "system", "content": "s"}, user("first"), CALL, user("second")])
    question = last_question(document, "chat")
    assert (question.text, len(question.turns)) == ("second", 4)


def test_an_agents_calls_and_results_do_not_change_the_question() -> None:
    messages = [user("Stock?")]
    asked = last_question(body(messages=messages), "chat")
    assert last_question(body(messages=[*messages, CALL, RESULT]), "chat") == asked


def test_anthropic_results_are_no_question_but_words_beside_them_are() -> None:
    result = {"type": "tool_result", "tool_use_id": "t", "content": "42"}
    first = user("Stock?")
    use = {"role": "assistant", "content": [{"type": "tool_use", "id": "t"}]}
    only = body(messages=[first, use, user([result])])
    assert last_question(only, "messages").text == "Stock?"
    beside = body(messages=[first, use, user([result, {"type": "text", "text": "And B?"}])])
    assert last_question(beside, "messages").text == "And B?"


def test_responses_items_and_plain_input() -> None:
    items = [user([{"type": "input_text", "text": "a"}, {"type": "input_text", "text": "b"}])]
    items.append({"type": "function_call_output", "call_id": "c", "output": "x"})
    assert last_question(body(input=items), "responses").text == "a\nb"
    question = last_question(body(input="plain"), "responses")
    assert (question.text, question.turns) == ("plain", ())


@pytest.mark.parametrize(("prompt", "text"), [("one", "one"), (["one", "two"], "one\ntwo"), ([1, 2], "")])
def test_prompts_are_questions(prompt: object, text: str) -> None:
    assert last_question(body(prompt=prompt), "completions").text == text


@pytest.mark.parametrize(
    "raw",
    [
        b"{}",
        b'{"messages":null}',
        b'{"messages":{}}',
        b'{"messages":[]}',
        b'{"messages":[1,"x",null,[]]}',
        b'{"messages":[{"role":"assistant","content":"a"}]}',
        b'{"messages":[{"role":"user","content":NaN}]}',
        b'{"messages":[{"role":"user","content":{"a":1}},{"role":7}]}',
    ],
)
def test_what_asks_nothing_is_an_empty_question(raw: bytes) -> None:
    document = Document.parse(raw)
    for name in ("chat", "messages", "responses", "embeddings"):
        assert last_question(document, name).text == ""
        assert not shows_images(document, name)


@pytest.mark.parametrize(
    ("name", "fields"),
    [
        ("chat", {"messages": [user([IMAGE]), user("hi")]}),
        ("messages", {"messages": [user([{"type": "image", "source": {}}])]}),
        ("messages", {"messages": [user([{"type": "tool_result", "content": [{"type": "image"}]}])]}),
        ("responses", {"input": [user([{"type": "input_image", "image_url": "u"}])]}),
        ("responses", {"input": [{"type": "x_output", "output": {"type": "computer_screenshot"}}]}),
        ("responses", {"input": [{"type": "x_output", "output": [{"type": "input_image"}]}]}),
    ],
)
def test_images_are_seen_wherever_they_are(name: str, fields: dict[str, Any]) -> None:
    assert shows_images(body(**fields), name)


@pytest.mark.parametrize(
    "messages",
    [
        [user("image_url")],
        [user('{"type": "image_url"}')],
        [user([{"type": "text", "text": "image_url"}])],
        [{"role": "assistant", "tool_calls": [{"function": {"arguments": {"type": "image_url"}}}]}],
        [user([{"type": "input_audio", "image_url": 1}])],
    ],
)
def test_words_about_images_are_none(messages: list[Any]) -> None:
    assert not shows_images(body(messages=messages), "chat")
