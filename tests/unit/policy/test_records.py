from __future__ import annotations

from collections.abc import Callable

import pytest

from proxy.policy.load import check

Problems = Callable[..., list[str]]
Write = Callable[..., str]


def test_an_unknown_key_has_its_own_position_and_a_suggestion(problems: Problems) -> None:
    assert problems("version: 1\nrouts: []\n") == ["2:1: routs: unknown key routs (did you mean routes?)"]
    assert problems("version: 1\nroutes:\n  - name: r\n    match: {pth: /x}\n") == [
        "4:13: routes[0].match.pth: unknown key pth (did you mean path?)"
    ]


def test_an_unknown_key_that_resembles_none_gets_no_suggestion(problems: Problems) -> None:
    assert problems("version: 1\nzzz: 1\n") == ["2:1: zzz: unknown key zzz"]


def test_everything_wrong_is_reported_in_one_run_from_top_to_bottom(problems: Problems) -> None:
    text = (
        "version: 2\nupstreams:\n  a: {base_url: nowhere}\n  b: {provider: openai}\n"
        "routes:\n  - name: r\n    match: {tools: yes}\n    usage: never\n  - match: {}\n"
    )
    assert [problem.split(" ")[0] for problem in problems(text)] == [
        "1:10:",
        "3:17:",
        "4:6:",
        "7:20:",
        "8:12:",
        "9:5:",
    ]


def test_a_missing_key_is_reported_where_it_is_missing(problems: Problems) -> None:
    assert problems("routes: []\n") == ["1:1: policy: key version is missing"]
    assert problems("version: 1\nroutes:\n  - match: {}\n") == ["3:5: routes[0]: key name is missing"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[]", "1:1: policy: a mapping is wanted, not a list"),
        ("hello", "1:1: policy: a mapping is wanted, not a value"),
        ("version: 1\nroutes: {}", "2:9: routes: a list is wanted, not a mapping (put it into [ ])"),
        (
            "version: 1\nroutes:\n",
            "2:8: routes: the list is empty (leave the key out or add items)",
        ),
        ("version: 1\nupstreams: []", "2:12: upstreams: a mapping is wanted, not a list"),
        (
            "version: 1\nupstreams:\n",
            "2:11: upstreams: a mapping is wanted, not nothing (write {} for one without keys)",
        ),
        ("version: 1\nroutes: [x]", "2:10: routes[0]: a mapping is wanted, not a value"),
    ],
)
def test_a_wrong_shape_is_named(problems: Problems, text: str, said: str) -> None:
    assert problems(text) == [said]


def test_an_empty_list_of_patterns_matches_nothing_and_is_refused(problems: Problems) -> None:
    (problem,) = problems("version: 1\nroutes:\n  - {name: r, match: {model: []}}\n")
    assert problem == "3:30: routes[0].match.model: the list is empty: leave the key out"


def test_header_names_that_differ_in_case_only_are_given_twice(problems: Problems) -> None:
    (problem,) = problems("version: 1\nroutes:\n  - {name: r, match: {headers: {X-A: a, x-a: b}}}\n")
    assert problem == "3:41: routes[0].match.headers.x-a: x-a is given twice"


def test_a_range_must_be_one(problems: Problems) -> None:
    for written, said in (("{min: 5, max: 4}", "min 5 is above max 4"), ("{}", "min or max is wanted")):
        (problem,) = problems(f"version: 1\nroutes:\n  - {{name: r, match: {{tokens: {written}}}}}\n")
        column = 31 if said == "min or max is wanted" else 32
        assert problem == f"3:{column}: routes[0].match.tokens: {said}"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("routes: [{name: r, match: {}, steps: }]", "2:37: routes[0].steps: the list is empty"),
        ("routes:\n  -\n", "3:4: routes[0]: the list item is empty (remove its - or its comma)"),
        (
            "routes:\n  - name: r\n    match: {}\n    steps:\n      -\n",
            "6:8: routes[0].steps[0]: the list item is empty (remove its - or its comma)",
        ),
        (
            "routes: [{name: r, match: /v1/x}]",
            "2:27: routes[0].match: a mapping is wanted, not a value (write {path: /v1/x})",
        ),
        (
            "routes: [{name: r, match: {}, urgency: interactive}]",
            "2:40: routes[0].urgency: a mapping is wanted, not a value (write {default: interactive})",
        ),
    ],
)
def test_what_was_left_out_is_told(problems: Problems, text: str, said: str) -> None:
    (problem,) = problems(f"version: 1\n{text}")
    assert problem.startswith(said)


def test_a_value_without_its_word_is_never_shown_when_it_came_from_outside(problems: Problems) -> None:
    text = "version: 1\nroutes: [{name: r, match: '${KEY}'}]"
    assert problems(text, {"KEY": "/sk-secret"}) == [
        "2:27: routes[0].match: a mapping is wanted, not a value"
    ]


STEPS = "version: 1\nroutes:\n  - name: r\n    match: {path: /v1/chat/completions}\n    steps:\n"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ("{default: 9, max: 5}", ["6:22: default must not be above max"]),
        ("{default: 0, max: 0}", ["6:22: default must be at least 1", "6:34: max must be at least 1"]),
        ("{max: 0, on_exceed: reject}", ["6:22: max must be at least 1"]),
        ("{default: 0}", ["6:22: default must be at least 1"]),
        ("{on_exceed: reject}", ["6:21: default or max must be given"]),
    ],
)
def test_what_a_step_refuses_is_reported_at_its_key_and_all_at_once(
    write: Write, options: str, said: list[str]
) -> None:
    found = check([write(f"{STEPS}      - cap_output: {options}\n")], {})
    assert [f"{each.line}:{each.column}: {each.problem}" for each in found] == said


def test_a_parameter_without_its_word_is_told_how_to_set_it(write: Write) -> None:
    (finding,) = check([write(f"{STEPS}      - set_params: {{temperature: 0.2}}\n")], {})
    assert finding.hint == "write {set: 0.2}"


def test_another_version_is_told_that_there_is_one_only(problems: Problems) -> None:
    assert problems("version: 2\n") == ["1:10: version: only version 1 exists"]
