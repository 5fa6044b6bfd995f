from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.tokens.bounds import upper_bound_bytes
from proxy.tokens.counter import TokenCounter
from proxy.tokens.images import MAX_IMAGE_TOKENS
from proxy.tokens.media import MEDIA_KINDS
from proxy.tokens.vocabulary import Vocabularies


def test_bounds_text_by_its_utf8_length() -> None:
    assert upper_bound_bytes("abc") == 3
    assert upper_bound_bytes("你好") == 6
    assert upper_bound_bytes("\ud83d") == 3
    assert upper_bound_bytes("") == 0


def test_bounds_plain_messages_by_little_more_than_their_bytes() -> None:
    raw = b'{"role":"user","content":"an image of a file"}'
    assert len(raw) <= upper_bound_bytes(raw) <= len(raw) + 40


@pytest.mark.parametrize("kind", sorted(MEDIA_KINDS))
def test_counts_every_kind_of_media_as_expensive(kind: str) -> None:
    raw = json.dumps({"role": "user", "content": [{"type": kind}]}).encode()
    assert upper_bound_bytes(raw) > MAX_IMAGE_TOKENS


@pytest.mark.parametrize("text_kind", ["text", "input_text", "output_text", "tool_result", "thinking"])
def test_does_not_take_text_parts_for_media(text_kind: str) -> None:
    raw = json.dumps({"role": "user", "content": [{"type": text_kind, "text": "x"}]}).encode()
    assert upper_bound_bytes(raw) < 100


def test_a_reference_to_a_picture_stays_below_the_bound(counter: TokenCounter) -> None:
    part = {"type": "image_url", "image_url": {"url": "https://example.com/a.png"}}
    raw = json.dumps({"role": "user", "content": [part]}).encode()
    for model in ("gpt-4o-mini", "gpt-6-astra", "claude-opus-5-5"):
        assert len(raw) < counter.count_message(raw, model).tokens <= upper_bound_bytes(raw)


def test_a_huge_body_has_a_useless_bound_but_a_true_one() -> None:
    raw = b'{"type":"image","file_id":"a"},' * 10_000
    assert upper_bound_bytes(raw) >= 10_000 * MAX_IMAGE_TOKENS


@given(
    text=st.text(st.characters(exclude_categories=()), max_size=100),
    model=st.sampled_from(["gpt-4o", "gpt-4", "claude-9"]),
)
def test_no_count_of_text_exceeds_its_bound(vocabularies: Vocabularies, text: str, model: str) -> None:
    counter = TokenCounter(vocabularies)
    assert counter.count_text(text, model).tokens <= upper_bound_bytes(text)
    raw = json.dumps({"role": "user", "content": text}).encode()
    assert counter.count_message(raw, model).tokens <= upper_bound_bytes(raw)
