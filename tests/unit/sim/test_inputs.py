from __future__ import annotations

import pytest

from proxy.sim.errors import ApiError
from proxy.sim.inputs import read_inputs


def counts(value: object) -> list[int]:
    return [len(tokens) for tokens in read_inputs({"input": value}, "input", 4)]


def test_a_flat_array_of_ids_is_one_input_of_many_tokens() -> None:
    assert counts([1, 2, 3]) == [3]


def test_other_arrays_are_as_many_inputs_as_elements() -> None:
    assert counts(["one", "two three"]) == [1, 2]
    assert counts([[1, 2, 3], [4]]) == [3, 1]
    assert counts("one two") == [2]


def test_ids_are_not_confused_with_text() -> None:
    assert read_inputs({"input": [12, 3]}, "input", 4) != read_inputs({"input": "12 3"}, "input", 4)
    assert read_inputs({"input": [12, 3]}, "input", 4) != read_inputs({"input": [1, 23]}, "input", 4)


@pytest.mark.parametrize(
    "value", [None, "", [], ["a", ""], ["a", 1], [[1], "a"], [[]], [[-1]], [[True]], 3, {}, [{}], ["a"] * 5]
)
def test_refuses_empty_mixed_and_too_many(value: object) -> None:
    with pytest.raises(ApiError) as refused:
        counts(value)
    assert refused.value.status == 400
    assert (refused.value.param or "").startswith("input")


def test_a_default_stands_in_for_an_absent_value() -> None:
    assert read_inputs({}, "prompt", 4, default="x") == (("x",),)
