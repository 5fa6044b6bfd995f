from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from proxy.policy.hints import kind_of_hint, record_of

StepConfig = Callable[[str], Any]
Problems = Callable[..., list[str]]

STEP = "version: 1\nroutes:\n  - name: r\n    match: {}\n    steps:\n      - "


def test_a_config_is_filled_by_its_type_hints(step_config: StepConfig) -> None:
    config = step_config(
        'paint: {layers: 2, ratio: 1, label: "x", wet: true, shade: off, mode: slow, '
        "inner: {depth: 9}, tags: [a, b]}"
    )
    assert (config.layers, config.ratio, config.label, config.wet) == (2, 1.0, "x", True)
    assert (config.shade.value, config.mode, config.inner.depth, config.tags) == (
        "off",
        "slow",
        9,
        ("a", "b"),
    )


def test_what_is_not_given_keeps_the_dataclass_default(step_config: StepConfig) -> None:
    config = step_config("paint: {layers: 1}")
    assert (config.ratio, config.label, config.wet, config.inner.depth) == (0.5, None, False, 1)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ("{layer: 1}", "6:17: routes[0].steps[0].paint.layer: unknown key layer (did you mean layers?)"),
        ("{layers: 0}", "6:17: routes[0].steps[0].paint: layers must be at least 1"),
        (
            '{layers: "1"}',
            "6:25: routes[0].steps[0].paint.layers: a whole number is wanted, this is text "
            "(remove the quotes: 1)",
        ),
        (
            "{layers: 1, ratio: high}",
            "6:35: routes[0].steps[0].paint.ratio: a number is wanted, not high (write it like 12 or 0.5)",
        ),
        (
            "{layers: 1, label: no}",
            '6:35: routes[0].steps[0].paint.label: no is read as a boolean, not as text (quote it: "no")',
        ),
        (
            "{layers: 1, label: null}",
            '6:35: routes[0].steps[0].paint.label: null is read as null, not as text (quote it: "null")',
        ),
        (
            "{layers: 1, mode: fst}",
            "6:34: routes[0].steps[0].paint.mode: one of fast, slow is wanted, not fst (did you mean fast?)",
        ),
        (
            "{layers: 1, tags: a}",
            "6:34: routes[0].steps[0].paint.tags: a list is wanted, not a value (put it into [ ])",
        ),
        (
            "{layers: 1, inner: {deep: 1}}",
            "6:36: routes[0].steps[0].paint.inner.deep: unknown key deep (did you mean depth?)",
        ),
    ],
)
def test_what_does_not_fit_is_refused_at_its_position(problems: Problems, options: str, said: str) -> None:
    found = problems(f"{STEP}paint: {options}\n")
    assert [problem for problem in found if "layers is missing" not in problem] == [said]


def test_a_field_without_default_must_be_given(problems: Problems) -> None:
    assert problems(f"{STEP}paint: {{}}\n") == ["6:16: routes[0].steps[0].paint: key layers is missing"]


def test_values_of_any_shape_are_those_that_json_has(step_config: StepConfig) -> None:
    config = step_config('rules: {a: {set: [1, 2.5, true, null, text, "no", {deep: -1}]}, n: {max: 1}}')
    assert config.rules == {"a": {"set": [1, 2.5, True, None, "text", "no", {"deep": -1}]}, "n": {"max": 1}}


@pytest.mark.parametrize("word", ["no", "yes", "on", "1e3", "012", "1_000", "12:30", "2024-01-01", "~"])
def test_values_of_any_shape_refuse_what_could_mean_two_things(problems: Problems, word: str) -> None:
    (problem,) = problems(f"{STEP}rules: {{a: {{set: {word}}}}}\n")
    assert problem.startswith(f"6:26: routes[0].steps[0].rules.a.set: {word} may be read as ")
    assert problem.endswith(f'(quote it: "{word}")')


def test_a_hint_that_no_policy_can_fill_is_a_programming_error() -> None:
    @dataclass
    class Odd:
        callback: bytes = b""

    with pytest.raises(TypeError, match="a policy cannot fill a field"):
        record_of(Odd)
    with pytest.raises(TypeError, match="a policy cannot fill a field"):
        kind_of_hint(str | int)
