from __future__ import annotations

from collections.abc import Callable

import pytest

Problems = Callable[..., list[str]]


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
        ("version: 1\nroutes:\n", "2:8: routes: a list is wanted, not a value (put it into [ ])"),
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
        assert problem == f"3:31: routes[0].match.tokens: {said}"
