from __future__ import annotations

import base64
import json
import time

import pytest

from proxy.tokens.counter import TokenCounter
from proxy.tokens.messages import (
    FULL_COUNT_BYTES_PER_MESSAGE,
    MAX_PIECES,
    REPLY_PRIMING_TOKENS,
    TOOL_CALL_TOKENS,
    measure_message,
)
from proxy.tokens.models import profile_for
from proxy.tokens.port import Count, total

GPT_4O = profile_for("gpt-4o")


def per_word(text: str) -> Count:
    return Count(len(text.split()), True)


def measure(value: object) -> Count:
    return measure_message(value, GPT_4O, per_word)


def test_frames_a_plain_message_exactly() -> None:
    assert measure({"role": "user", "content": "one two three"}) == Count(3 + 1 + 3, True)


def test_a_name_costs_itself_and_one() -> None:
    assert measure({"role": "user", "name": "ann", "content": "hi"}) == Count(3 + 1 + 1 + 1 + 1, True)


def test_adds_framing_to_what_the_encoding_counts(counter: TokenCounter) -> None:
    messages = [
        {"role": "system", "content": "Answer in one short line."},
        {"role": "user", "name": "reviewer_2", "content": "你好,世界! Is this line right? x ** 2"},
        {"role": "assistant", "content": ""},
    ]
    for model in ("gpt-3.5-turbo-0613", "gpt-4-0613", "gpt-4o-2024-08-06"):
        words = [text for message in messages for text in message.values()]
        text_tokens = sum(counter.count_text(text, model).tokens for text in words)
        counts = [counter.count_message(json.dumps(message).encode(), model) for message in messages]
        assert total(counts) == Count(text_tokens + 3 * 3 + 1, True)
    assert REPLY_PRIMING_TOKENS == 3


def test_text_parts_count_like_a_string() -> None:
    parts = [{"type": "text", "text": "one two"}, {"type": "text", "text": "three"}]
    assert measure({"role": "user", "content": parts}) == measure(
        {"role": "user", "content": "one two three"}
    )


def test_content_may_be_null_or_absent() -> None:
    assert measure({"role": "assistant", "content": None}) == Count(4, True)
    assert measure({"role": "assistant"}) == Count(4, True)


def test_counts_tool_calls_but_not_their_ids() -> None:
    call = {"id": "call_" + "x y " * 50, "type": "function", "function": {"name": "f", "arguments": "a b c"}}
    message = {"role": "assistant", "content": None, "tool_calls": [call, call]}
    assert measure(message) == Count(4 + 2 * (TOOL_CALL_TOKENS + 1 + 3), False)


def test_counts_a_tool_result() -> None:
    message = {"role": "tool", "tool_call_id": "call 1 2 3", "content": "four words of result"}
    assert measure(message) == Count(4 + 4, True)


def test_counts_responses_items() -> None:
    call = {"type": "function_call", "call_id": "c 1", "name": "f", "arguments": "a b"}
    output = {"type": "function_call_output", "call_id": "c 1", "output": "a b c"}
    message = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "a b"}]}
    assert measure(call) == Count(3 + TOOL_CALL_TOKENS + 3, False)
    assert measure(output) == Count(3 + TOOL_CALL_TOKENS + 3, False)
    assert measure(message) == Count(4 + 2, False)


def test_counts_reasoning_by_its_summary_and_the_length_of_what_is_sealed() -> None:
    item = {
        "type": "reasoning",
        "id": "rs 1",
        "summary": [{"type": "summary_text", "text": "a b"}],
        "encrypted_content": "gAAA" * 250,
    }
    assert measure(item) == Count(3 + 2 + 200, False)


def test_counts_anthropic_blocks() -> None:
    blocks = [
        {"type": "thinking", "thinking": "a b c", "signature": "s " * 500},
        {"type": "redacted_thinking", "data": "x" * 50},
        {"type": "tool_use", "id": "t 1", "name": "f", "input": {"path": "b c"}},
    ]
    result = [{"type": "tool_result", "tool_use_id": "t 1", "content": [{"type": "text", "text": "a b"}]}]
    assert measure({"role": "assistant", "content": blocks}).tokens == 4 + 3 + 10 + (TOOL_CALL_TOKENS + 1 + 2)
    assert measure({"role": "user", "content": result}).tokens == 4 + 2


def test_a_text_document_is_text() -> None:
    source = {"type": "text", "media_type": "text/plain", "data": "a b c d"}
    document = {"type": "document", "title": "two words", "source": source}
    assert measure({"role": "user", "content": [document]}).tokens == 4 + 2 + 4


def test_a_bare_string_or_list_is_a_message() -> None:
    assert measure("one two").tokens == 3 + 2
    assert measure([{"type": "text", "text": "one two"}]).tokens == 3 + 2


def test_cache_markers_are_free() -> None:
    part = {"type": "text", "text": "a", "cache_control": {"type": "ephemeral", "ttl": "one hour"}}
    assert measure({"role": "user", "content": [part]}) == Count(5, True)


def test_pictures_are_not_text_wherever_they_stand() -> None:
    picture = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "x y " * 5000}}
    inside_result = {"type": "tool_result", "content": [{"type": "image", "source": {"data": "x y " * 5000}}]}
    for part in (picture, inside_result):
        assert measure({"role": "user", "content": [part]}) == Count(4 + 765, False)


def test_data_in_an_unknown_part_is_not_text() -> None:
    part = {"type": "hologram", "payload": base64.b64encode(bytes(1_900_000)).decode(), "caption": "a b"}
    count = measure({"role": "user", "content": [part]})
    assert 4 + 2 < count.tokens < 5_000
    assert not count.exact


def test_data_that_the_model_reads_as_text_is_text(counter: TokenCounter) -> None:
    data = base64.b64encode(bytes(range(256)) * 40).decode()
    for item in (
        {"role": "user", "content": data},
        {"type": "function_call_output", "output": data},
        {"role": "user", "content": [{"type": "tool_result", "content": data}]},
    ):
        assert counter.count_message(json.dumps(item).encode(), "gpt-4o").tokens > len(data) // 4


@pytest.mark.parametrize("kind", [None, 5, [], {}, ["text"]])
def test_a_type_that_is_no_string_is_no_type(kind: object) -> None:
    assert measure({"role": "user", "content": [{"type": kind, "text": "a b"}]}).tokens >= 6
    assert measure({"type": kind, "text": "a b"}).tokens >= 5


def test_refuses_to_walk_through_endless_pieces(counter: TokenCounter) -> None:
    for parts in ([{"type": "text", "text": "word"}] * (MAX_PIECES + 1), [[["x"]]] * MAX_PIECES):
        with pytest.raises(ValueError, match="pieces"):
            measure({"role": "user", "content": parts})
        raw = json.dumps({"role": "user", "content": parts}).encode()
        assert counter.count_message(raw, "gpt-4o") == Count(-(-len(raw) // 4), False)


def test_the_rest_of_an_endless_message_is_estimated() -> None:
    long = [{"type": "text", "text": "word " * 20_000}] * (FULL_COUNT_BYTES_PER_MESSAGE // 100_000 + 2)
    assert not measure({"role": "user", "content": long}).exact


def test_a_10_mb_picture_costs_milliseconds(counter: TokenCounter) -> None:
    url = "data:image/png;base64," + base64.b64encode(b"\x89PNG\r\n\x1a\n" + bytes(7_500_000)).decode()
    parts = [{"type": "text", "text": "what is this?"}, {"type": "image_url", "image_url": {"url": url}}]
    raw = json.dumps({"role": "user", "content": parts}).encode()
    started = time.thread_time()
    count = counter.count_message(raw, "gpt-4o")
    assert (time.thread_time() - started) * 1000 < 50
    assert count.tokens < 1_000
