from __future__ import annotations

import json
import time

import pytest

from proxy.tokens.counter import TokenCounter
from proxy.tokens.models import profile_for
from proxy.tokens.port import Count, EncodingName, TextEncoder
from proxy.tokens.vocabulary import Vocabularies


class PanicException(BaseException):
    """Named and derived like what a panic in tiktoken raises."""


class Broken:
    """An encoder that raises, and counts how often it was asked."""

    def __init__(self, error: BaseException) -> None:
        self.error = error
        self.calls = 0

    def encode_ordinary(self, text: str) -> list[int]:
        self.calls += 1
        raise self.error


class Counting:
    """An encoder that makes one token of each character and adds up what it was given."""

    def __init__(self) -> None:
        self.characters = 0

    def encode_ordinary(self, text: str) -> list[int]:
        self.characters += len(text)
        return [0] * len(text)


def _with(encoder: TextEncoder, cache_entries: int = 1000) -> TokenCounter:
    return TokenCounter(dict.fromkeys(EncodingName, encoder), cache_entries)


def _message(text: str) -> bytes:
    return json.dumps({"role": "user", "content": text}).encode()


def test_counts_with_the_encoding_of_the_model(counter: TokenCounter) -> None:
    text = "你好,世界!今天天气怎么样?"
    assert counter.count_text(text, "gpt-4o") == Count(9, True)
    assert counter.count_text(text, "gpt-4") == Count(17, True)
    assert counter.count_text(text, "gpt-6-astra") == Count(9, False)


def test_scales_models_with_another_tokenizer_but_never_beyond_their_bytes(counter: TokenCounter) -> None:
    assert counter.count_text("The quick brown fox jumps over the lazy dog.", "claude-9") == Count(14, False)
    assert counter.count_text("x", "claude-9") == Count(1, False)


def test_reads_special_tokens_as_plain_text(counter: TokenCounter) -> None:
    assert counter.count_text("explain <|endoftext|> and <|im_start|>", "gpt-4o") == Count(16, True)


def test_a_missing_vocabulary_gives_estimates() -> None:
    counter = TokenCounter({})
    assert counter.count_text("four letters", "gpt-4o") == Count(3, False)
    assert counter.count_message(_message("four letters"), "gpt-4") == Count(3 + 1 + 3, False)
    assert counter.count_tools(b'[{"type":"function","function":{"name":"f"}}]', "gpt-4").tokens > 9


@pytest.mark.parametrize("error", [PanicException("boom"), RuntimeError("boom"), ValueError("boom")])
def test_a_failing_tokenizer_gives_estimates_and_is_counted(error: BaseException) -> None:
    counter = _with(Broken(error))
    assert counter.count_text("four letters", "gpt-4o") == Count(3, False)
    assert counter.fallbacks == 1
    assert counter.count_message(_message("four letters"), "gpt-4o").tokens == 3 + 1 + 3


@pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit(1)])
def test_does_not_swallow_the_end_of_the_process(error: BaseException) -> None:
    with pytest.raises(type(error)):
        _with(Broken(error)).count_text("four letters", "gpt-4o")


def test_counts_a_message_once() -> None:
    encoder = Counting()
    counter = _with(encoder)
    first = counter.count_message(_message("hello"), "gpt-4o")
    counted = encoder.characters
    assert counter.count_message(_message("hello"), "gpt-4o") == first
    assert counter.count_message(_message("hello"), "gpt-4o-2024-05-13") == first
    assert encoder.characters == counted


def test_a_growing_conversation_costs_only_what_is_new() -> None:
    encoder = Counting()
    counter = _with(encoder)
    turns = [_message(f"turn {number} " + "word " * 100) for number in range(50)]
    for length in range(1, len(turns) + 1):
        for raw in turns[:length]:
            counter.count_message(raw, "gpt-4o")
    assert encoder.characters < sum(map(len, turns))


def test_the_cache_tells_models_and_kinds_apart(counter: TokenCounter) -> None:
    raw = _message("你好,世界!今天天气怎么样?")
    assert counter.count_message(raw, "gpt-4o").tokens != counter.count_message(raw, "gpt-4").tokens
    assert counter.count_message(b"[]", "gpt-4o") != counter.count_tools(b"[]", "gpt-4o")


def test_the_cache_is_bounded() -> None:
    encoder = Counting()
    counter = _with(encoder, cache_entries=2)
    for text in ("aa", "bb", "cc", "aa"):
        counter.count_message(_message(text), "gpt-4o")
    assert encoder.characters == 4 * (len("user") + 2)


def test_a_flood_of_model_names_does_not_stay_in_memory() -> None:
    counter = _with(Counting())
    for number in range(5_000):
        counter.count_text("x", f"model-{number}")
    counter.count_text("x", "m" * 1_000_000)
    assert counter.count_text("x", "gpt-4o") == Count(1, True)


def test_says_how_much_is_new() -> None:
    counter = _with(Counting())
    known, new = _message("known"), _message("new")
    counter.count_message(known, "gpt-4o")
    assert counter.uncached_bytes([known, new], "gpt-4o") == len(new)
    assert counter.uncached_bytes([known, new], "gpt-4") == len(known) + len(new)


@pytest.mark.parametrize(
    "raw",
    [b"", b"{", b'"\xff"', b"[" * 100_000, b'{"a":' * 5_000 + b"1" + b"}" * 5_000, b"9" * 5_000, b"NaN"],
)
def test_estimates_what_cannot_be_read(counter: TokenCounter, raw: bytes) -> None:
    for count in (counter.count_message(raw, "gpt-4o"), counter.count_tools(raw, "gpt-4o")):
        assert not count.exact
        assert count.tokens <= counter.upper_bound_bytes(raw)


def test_reads_lone_surrogates_as_clients_write_them(counter: TokenCounter) -> None:
    count = counter.count_message(rb'{"role":"user","content":"broken \ud83d emoji"}', "gpt-4o")
    assert count == counter.count_message(
        '{"role":"user","content":"broken \ufffd emoji"}'.encode(), "gpt-4o"
    )
    assert counter.fallbacks == 0


def test_a_cached_message_costs_its_hash(vocabularies: Vocabularies) -> None:
    counter = TokenCounter(vocabularies)
    raw = _message("word " * 8_000)

    def spent_ms() -> float:
        started = time.thread_time()
        counter.count_message(raw, "gpt-4o")
        return (time.thread_time() - started) * 1000

    first_ms = spent_ms()
    assert min(spent_ms() for _ in range(5)) < first_ms / 5


def test_the_profile_decides_what_is_exact(counter: TokenCounter) -> None:
    raw = _message("hello")
    assert counter.count_message(raw, "gpt-4o").exact
    assert not counter.count_message(raw, "gpt-5").exact
    assert counter.count_text("hello", "gpt-5").exact
    assert not profile_for("gpt-6").exact_text


def test_all_vocabularies_may_be_had_beforehand() -> None:
    asked: list[EncodingName] = []

    class Noting:
        def get(self, name: EncodingName, /) -> TextEncoder | None:
            asked.append(name)
            return None

    counter = TokenCounter(Noting())
    assert asked == []
    counter.prepare()
    assert asked == list(EncodingName)
