"""Dividing what a merged call used: the parts add up, whatever the weights."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from proxy.lanes.coalesce.merge_usage import divide, divide_usage

weights = st.lists(st.integers(0, 5000), min_size=1, max_size=40)


@given(st.integers(0, 10**12), weights)
def test_parts_add_up_to_the_whole_and_are_off_by_less_than_one(whole: int, of: list[int]) -> None:
    parts = divide(whole, of)
    assert sum(parts) == whole
    total = sum(of) or len(of)
    for part, weight in zip(parts, of if any(of) else [1] * len(of), strict=True):
        assert abs(part * total - whole * weight) < total


def test_own_counts_that_add_up_are_the_parts() -> None:
    assert divide(12, [3, 4, 5]) == [3, 4, 5]


def test_the_largest_remainder_gets_what_rounding_left_and_the_first_of_equal_ones() -> None:
    assert divide(10, [1, 1, 1]) == [4, 3, 3]
    assert divide(10, [6, 3, 1]) == [6, 3, 1]
    assert divide(5, [6, 3, 1]) == [3, 2, 0]


def test_no_part_is_larger_than_it_may_be_where_there_is_room() -> None:
    assert divide(24, [13, 11], [12, 12]) == [12, 12]
    assert divide(20, [18, 1, 1], [12, 12, 4]) == [12, 6, 2]
    assert divide(30, [2, 1], [12, 12]) == [20, 10], "what cannot be true is not made so"


@given(st.lists(st.tuples(st.integers(0, 500), st.integers(0, 50)), min_size=1, max_size=20), st.data())
def test_parts_with_bounds_add_up_and_keep_them(of: list[tuple[int, int]], data: st.DataObject) -> None:
    most = [bound for _, bound in of]
    whole = data.draw(st.integers(0, sum(most)))
    parts = divide(whole, [weight for weight, _ in of], most)
    assert sum(parts) == whole
    assert all(0 <= part <= bound for part, bound in zip(parts, most, strict=True))


def test_an_amount_beyond_all_bounds_stays_json() -> None:
    parts = divide_usage(b'{"prompt_tokens":12,"cost":1e308}', [9, 3], [0, 0])
    assert b"nfinity" not in b"".join(parts)
    assert [json.loads(part)["cost"] for part in parts] == [7.5e307, 2.5e307]


def divided(usage: dict[str, Any], inputs: list[int], outputs: list[int]) -> list[Any]:
    return [json.loads(part) for part in divide_usage(json.dumps(usage).encode(), inputs, outputs)]


def test_embeddings_usage_follows_the_inputs() -> None:
    assert divided({"prompt_tokens": 12, "total_tokens": 12}, [3, 4, 5], [0, 0, 0]) == [
        {"prompt_tokens": count, "total_tokens": count} for count in (3, 4, 5)
    ]


def test_a_total_is_the_sum_of_its_parts_for_everybody() -> None:
    whole = {"prompt_tokens": 10, "completion_tokens": 7, "total_tokens": 17}
    parts = divided(whole, [1, 1, 1], [5, 1, 1])
    for part in parts:
        assert part["total_tokens"] == part["prompt_tokens"] + part["completion_tokens"]
    assert [part["completion_tokens"] for part in parts] == [5, 1, 1]


@given(st.data(), weights)
def test_details_add_up_and_nobody_has_more_cached_than_prompt_tokens(
    data: st.DataObject, of: list[int]
) -> None:
    prompt = data.draw(st.integers(0, 10_000))
    cached = data.draw(st.integers(0, prompt))
    whole = {
        "prompt_tokens": prompt,
        "total_tokens": prompt,
        "prompt_tokens_details": {"cached_tokens": cached},
    }
    parts = divided(whole, of, [0] * len(of))
    assert sum(part["prompt_tokens_details"]["cached_tokens"] for part in parts) == cached
    for part in parts:
        assert part["prompt_tokens_details"]["cached_tokens"] <= part["prompt_tokens"]


def test_what_is_no_figure_goes_to_everybody_and_money_is_divided() -> None:
    whole = {"prompt_tokens": 4, "cost": 0.5, "tier": "flex", "odd": None, "details": {"deep": {"n": 4}}}
    first, second = divided(whole, [1, 3], [0, 0])
    assert (first["tier"], first["odd"]) == ("flex", None)
    assert (first["cost"], second["cost"]) == (0.125, 0.375)
    assert (first["details"], second["details"]) == ({"deep": {"n": 1}}, {"deep": {"n": 3}})


def test_odd_usage_passes() -> None:
    assert divide_usage(b"null", [1, 2], [0, 0]) == [b"null", b"null"]
    long = b'{"prompt_tokens":%b}' % (b"9" * 5000)
    assert len(divide_usage(long, [1, 2], [0, 0])) == 2
    deep = b'{"a":' * 100 + b"1" + b"}" * 100
    assert len(divide_usage(deep, [1, 2], [0, 0])) == 2
