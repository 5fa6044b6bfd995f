from __future__ import annotations

import random
import string
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.tokens.bounded import (
    CHUNK_BYTES,
    FULL_COUNT_BYTES,
    byte_estimate,
    count_bounded,
    utf8_length,
)
from proxy.tokens.counter import TokenCounter
from proxy.tokens.port import EncodingName, TextEncoder
from proxy.tokens.vocabulary import Vocabularies

_RANDOM = random.Random(20)
_WORDS = ["".join(_RANDOM.choices(string.ascii_lowercase, k=_RANDOM.randint(2, 9))) for _ in range(2000)]
_LETTERS = "".join(_RANDOM.choices(string.ascii_letters, k=1_000_000))

# (name, text, tokens in o200k_base by tiktoken in one call, where that survives)
PATHOLOGICAL = [
    ("one letter", "a" * 300_000, 37_500),
    ("one ideograph", "你" * 50_000, 50_000),
    ("underscores", "_" * 50_000, 782),
    ("spaces that make tiktoken panic", " " * 1_200_000, 9_375),
    ("the same before a word", " " * 1_200_000 + "x", 9_377),
    ("newlines", "\n" * 1_000_000, 62_500),
    ("digits", "7" * 100_000, 33_334),
    ("special tokens", "<|endoftext|>" * 20_000, 120_001),
    ("lone surrogates", "\ud83d x" * 20_000, 40_000),
    ("a run of lone surrogates", "\udc00" * 50_000, 6_250),
    ("a million letters in one word", _LETTERS, 610_000),
    ("mixed white space", "".join(_RANDOM.choices(" \t\n", k=1_200_000)), 390_000),
    ("many runs", "".join(chr(0x4E00 + index) * 1_100 for index in range(300)), 528_000),
]


class Recorder:
    """An encoder that makes one token of each character and remembers what it was given."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    def encode_ordinary(self, text: str) -> list[int]:
        self.texts.append(text)
        return [0] * len(text)


def _prose(words: int) -> str:
    return " ".join(_RANDOM.choices(_WORDS, k=words))


@pytest.fixture(params=list(EncodingName))
def encoder(vocabularies: Vocabularies, request: pytest.FixtureRequest) -> TextEncoder:
    encoder = vocabularies.get(request.param)
    assert encoder is not None
    return encoder


@pytest.mark.parametrize(
    ("text", "tokens"), [case[1:] for case in PATHOLOGICAL], ids=[case[0] for case in PATHOLOGICAL]
)
def test_ends_in_time_on_pathological_text(counter: TokenCounter, text: str, tokens: int) -> None:
    started = time.thread_time()
    count = counter.count_text(text, "gpt-4o")
    spent_ms = (time.thread_time() - started) * 1000
    assert spent_ms < 50
    assert count.tokens == pytest.approx(tokens, rel=0.12)
    assert counter.fallbacks == 0


@pytest.mark.parametrize("character", list("aAzw =_-\n\t07你日é🎉\x00"))
@pytest.mark.parametrize("length", [1_001, 1_536, 2_304, 5_000, 10_007])
def test_reckons_runs_as_the_encoder_counts_them(encoder: TextEncoder, character: str, length: int) -> None:
    text = f"before {character * length} after"
    expected = len(encoder.encode_ordinary(text))
    assert count_bounded(encoder.encode_ordinary, text).tokens == pytest.approx(expected, abs=1)


def test_calls_text_with_a_long_run_estimated(encoder: TextEncoder) -> None:
    assert count_bounded(encoder.encode_ordinary, "a" * 1_000).exact
    assert not count_bounded(encoder.encode_ordinary, "a" * 5_000).exact


def test_finds_a_run_anywhere_in_a_text() -> None:
    for offset in (0, 1, 499, 500, 501, 777, 2_048):
        recorder = Recorder()
        text = "ab" * (offset // 2) + "c" * 50_000 + "de" * 700
        assert count_bounded(recorder.encode_ordinary, text).tokens == len(text)
        assert max(map(len, recorder.texts)) < 6_000


def test_cuts_long_text_only_where_a_token_begins(encoder: TextEncoder) -> None:
    text = _prose(16_000)
    assert CHUNK_BYTES < len(text) < FULL_COUNT_BYTES
    count = count_bounded(encoder.encode_ordinary, text)
    assert count.tokens == len(encoder.encode_ordinary(text))
    assert count.exact


def test_calls_a_cut_inside_a_word_estimated(encoder: TextEncoder) -> None:
    text = _LETTERS[:100_000]
    count = count_bounded(encoder.encode_ordinary, text)
    assert not count.exact
    assert count.tokens == pytest.approx(len(encoder.encode_ordinary(text)), abs=2)


@pytest.mark.parametrize("character", ["a", "é", "你", "🎉"])
def test_gives_the_encoder_no_piece_over_the_limit(character: str) -> None:
    recorder = Recorder()
    text = (character * 40 + "b ") * 800
    assert count_bounded(recorder.encode_ordinary, text).tokens == len(text)
    assert max(len(text.encode()) for text in recorder.texts) <= CHUNK_BYTES


def test_samples_what_is_very_long() -> None:
    recorder = Recorder()
    text = _prose(200_000)
    count = count_bounded(recorder.encode_ordinary, text)
    assert not count.exact
    assert count.tokens == pytest.approx(len(text), rel=0.001)
    assert sum(map(len, recorder.texts)) <= 64 * 1024


def test_a_sample_sees_a_text_that_changes_midway(encoder: TextEncoder) -> None:
    text = _prose(40_000) + "你好世界今天天气" * 20_000 + _LETTERS[:150_000]
    expected = len(encoder.encode_ordinary(text))
    assert count_bounded(encoder.encode_ordinary, text).tokens == pytest.approx(expected, rel=0.05)


@given(st.text(max_size=400))
def test_short_text_is_counted_as_it_is(text: str) -> None:
    recorder = Recorder()
    assert count_bounded(recorder.encode_ordinary, text).tokens == len(text)
    assert recorder.texts == [text]


@given(st.lists(st.sampled_from(["a ", " \n ", "你 ", "x  y", "\t", "1 2", "!/ \n", "🎉 "]), min_size=400))
def test_chunks_lose_nothing_and_add_nothing(pieces: list[str]) -> None:
    recorder = Recorder()
    text = "".join(pieces) * 40
    count_bounded(recorder.encode_ordinary, text)
    assert sum(map(len, recorder.texts)) == len(text) or len(text.encode()) > FULL_COUNT_BYTES


@given(st.text(st.characters(exclude_categories=()), max_size=200))
def test_estimates_stay_within_the_byte_length(text: str) -> None:
    assert byte_estimate(text) <= utf8_length(text)
    assert (byte_estimate(text) == 0) == (text == "")


def test_estimates_ideographs_at_about_one_token() -> None:
    assert byte_estimate("你好世界") == 4
    assert byte_estimate("four letters") == 3
