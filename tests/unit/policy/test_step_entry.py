from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

StepConfig = Callable[[str], Any]
Problems = Callable[..., list[str]]

STEP = "version: 1\nroutes:\n  - name: r\n    match: {}\n    steps:\n      - "


def test_a_name_alone_takes_the_defaults(step_config: StepConfig) -> None:
    assert step_config("plain").level == 3
    assert step_config("plain: {}").level == 3


def test_a_shorthand_takes_a_list_and_the_long_form_a_mapping(step_config: StepConfig) -> None:
    assert step_config("words: [a, b]").words == ("a", "b")
    assert step_config("words: {words: [a], limit: 2}").limit == 2


def test_a_shorthand_of_any_keys_takes_the_whole_mapping(step_config: StepConfig) -> None:
    assert step_config("rules: {rules: {x: 1}}").rules == {"rules": {"x": 1}}


def test_text_reaches_a_step_to_the_code_point(step_config: StepConfig) -> None:
    assert step_config(r'words: ["\n```", "a ", "\t", "\\n"]').words == ("\n```", "a ", "\t", "\\n")


def test_every_trap_in_a_list_of_words_is_reported(problems: Problems) -> None:
    found = problems(f"{STEP}words: [no, off, ~, 2024-01-01, 1_000]\n")
    assert [problem.partition(": routes[0].steps[0].words")[2][:3] for problem in found] == [
        "[0]",
        "[1]",
        "[2]",
        "[3]",
        "[4]",
    ]


@pytest.mark.parametrize(
    ("entry", "said"),
    [
        ("pant: {layers: 1}", "6:9: routes[0].steps[0]: unknown step pant (did you mean paint?)"),
        ("plane", "6:9: routes[0].steps[0]: unknown step plane (did you mean plain?)"),
        (
            "plain:",
            "6:15: routes[0].steps[0].plain: the step has no options "
            "(write plain alone, or {} for its defaults)",
        ),
        (
            "{plain: {}, paint: {layers: 1}}",
            "6:9: routes[0].steps[0]: a step is a name with its options, such as cap_output: {max: 800} "
            "(begin each step with its own - , and indent its options)",
        ),
        (
            "[plain]",
            "6:9: routes[0].steps[0]: a step is a name with its options, such as cap_output: {max: 800}",
        ),
        ("words: x", "6:16: routes[0].steps[0].words: a list is wanted, not a value (put it into [ ])"),
    ],
)
def test_a_wrong_entry_is_explained(problems: Problems, entry: str, said: str) -> None:
    assert problems(f"{STEP}{entry}\n") == [said]


def test_options_that_are_not_indented_are_explained(problems: Problems) -> None:
    (problem,) = problems(f"{STEP}paint:\n        layers: 1\n")
    assert "indent its options" in problem
