"""What every counter must do: the same tests on the real one and on its twin."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.tokens.counter import TokenCounter
from proxy.tokens.fixed import FixedCounter
from proxy.tokens.port import Count, Counter, total
from proxy.tokens.vocabulary import Vocabularies

MODELS = ["gpt-4o", "gpt-3.5-turbo", "gpt-6-astra", "claude-opus-5-5", "no such model", ""]

KEYS = ["type", "role", "content", "text", "name", "tool_calls", "input", "source", "data", "parameters"]
WORDS = ["user", "text", "image_url", "file", "input_audio", "tool_use", "document", "function", "object"]

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20) | st.sampled_from(WORDS),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.sampled_from(KEYS) | st.text(max_size=8), inner, max_size=5)
    ),
    max_leaves=20,
)


@pytest.fixture(scope="session", params=["tokens", "tokens without vocabularies", "fixed"])
def counting(request: pytest.FixtureRequest, vocabularies: Vocabularies) -> Counter:
    match request.param:
        case "tokens":
            return TokenCounter(vocabularies)
        case "tokens without vocabularies":
            return TokenCounter({})
        case _:
            return FixedCounter()


def _message(content: object) -> bytes:
    return json.dumps({"role": "user", "content": content}).encode()


@pytest.mark.parametrize("model", MODELS)
def test_nothing_costs_nothing(counting: Counter, model: str) -> None:
    assert counting.count_text("", model).tokens == 0
    assert counting.count_tools(b"[]", model).tokens == 0


@pytest.mark.parametrize("model", MODELS)
def test_more_text_never_costs_less(counting: Counter, model: str) -> None:
    counts = [counting.count_text("several words here " * times, model).tokens for times in range(1, 30)]
    assert counts == sorted(counts)
    assert counts[-1] > counts[0] > 0


@pytest.mark.parametrize("model", MODELS)
def test_a_message_costs_more_than_its_text(counting: Counter, model: str) -> None:
    text = "several words here " * 20
    assert counting.count_message(_message(text), model).tokens > counting.count_text(text, model).tokens


@pytest.mark.parametrize("model", MODELS)
def test_counts_stay_within_the_bound(counting: Counter, model: str) -> None:
    for text in ("", "x", "several words", "你好", "🎉" * 50, "\ud83d"):
        assert counting.count_text(text, model).tokens <= counting.upper_bound_bytes(text)
        raw = _message(text)
        assert counting.count_message(raw, model).tokens <= counting.upper_bound_bytes(raw)


@pytest.mark.parametrize("model", MODELS)
def test_base64_pictures_are_not_text(counting: Counter, model: str) -> None:
    url = "data:image/png;base64," + "iVBORw0KGgo" * 200_000
    part = {"type": "image_url", "image_url": {"url": url}}
    assert counting.count_message(_message([part]), model).tokens < 60_000


@pytest.mark.parametrize("model", MODELS)
def test_tools_cost_something(counting: Counter, model: str) -> None:
    tools = [{"type": "function", "function": {"name": "find_the_answer", "description": "Find it."}}]
    assert counting.count_tools(json.dumps(tools).encode(), model).tokens > 10


@given(value=json_values, model=st.sampled_from(MODELS))
def test_any_json_is_counted(counting: Counter, value: object, model: str) -> None:
    raw = json.dumps(value).encode()
    for count in (counting.count_message(raw, model), counting.count_tools(raw, model)):
        assert count.tokens >= 0
    assert counting.count_message(raw, model) == counting.count_message(raw, model)


@given(raw=st.binary(max_size=60))
def test_any_bytes_are_counted(counting: Counter, raw: bytes) -> None:
    assert counting.count_message(raw, "gpt-4o").tokens >= 0
    assert counting.count_tools(raw, "gpt-4o").tokens >= 0


def test_what_was_counted_is_not_new(counting: Counter) -> None:
    raw = _message("counted before")
    counting.count_message(raw, "gpt-4o")
    assert counting.uncached_bytes([raw], "gpt-4o") == 0


def test_a_sum_is_exact_only_when_all_parts_are() -> None:
    assert total([]) == Count(0, True)
    assert total([Count(1, True), Count(2, True)]) == Count(3, True)
    assert total([Count(1, True), Count(2, False)]) == Count(3, False)
