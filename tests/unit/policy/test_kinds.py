"""Single values: what is read, and how precisely a wrong one is refused."""

from __future__ import annotations

from collections.abc import Callable

import pytest

Problems = Callable[..., list[str]]

ROUTE = "version: 1\nroutes:\n  - name: r\n    match: {}\n    "


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ('"false"', "true or false is wanted, this is quoted text (remove the quotes: false)"),
        ("'True'", "true or false is wanted, this is quoted text (remove the quotes: true)"),
        ("yes", "true or false is wanted, not yes (did you mean true?)"),
        ("off", "true or false is wanted, not off (did you mean false?)"),
        ("True", "true or false is wanted, not True (did you mean true?)"),
        ("1", "true or false is wanted"),
        ("~", "true or false is wanted"),
        ("", "true or false is wanted, nothing is given"),
        ("[true]", "true or false is wanted, not a list"),
        ("${FLAG}", "true or false is wanted; a substituted value is always text"),
    ],
)
def test_booleans_are_strict(problems: Problems, written: str, said: str) -> None:
    found = problems(f"{ROUTE}timing_comment: {written}\n", {"FLAG": "false"})
    assert [problem.partition("routes[0].timing_comment: ")[2] for problem in found] == [said]


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ('"5"', "a whole number is wanted, this is text (remove the quotes: 5)"),
        ("012", "a whole number is wanted, not 012 (did you mean 12?)"),
        ("1_000", "a whole number is wanted, not 1_000 (did you mean 1000?)"),
        ("0x10", "a whole number is wanted, not 0x10"),
        ("1e3", "a whole number is wanted, not 1e3"),
        ("1.0", "a whole number is wanted, not 1.0"),
        ("12:30", "a whole number is wanted, not 12:30"),
        ("-1", "at least 0 is wanted, not -1"),
        ("9" * 30, f"a whole number is wanted, not {'9' * 30}"),
        ("off", "a whole number is wanted, not off"),
        ("${CAP}", "a whole number is wanted; a substituted value is always text"),
        ("{}", "a whole number is wanted, not a mapping"),
    ],
)
def test_whole_numbers_are_strict(problems: Problems, written: str, said: str) -> None:
    found = problems(f"{ROUTE}max_concurrent: {written}\n", {"CAP": "5"})
    assert [problem.partition("routes[0].max_concurrent: ")[2] for problem in found] == [said]


@pytest.mark.parametrize(
    "word", ["no", "on", "y", "1e3", "0123", "12:30", "null", "~", "2024-01-01", "1_000", "0755", "="]
)
def test_words_that_are_no_text_in_yaml_must_be_quoted(problems: Problems, word: str) -> None:
    assert not problems(f'version: 1\nroutes:\n  - name: "{word}"\n    match: {{}}\n')
    (problem,) = problems(f"version: 1\nroutes:\n  - name: {word}\n    match: {{}}\n")
    assert problem.startswith(f"3:11: routes[0].name: {word} is read as ")
    assert problem.endswith(f'not as text (quote it: "{word}")')


def test_off_needs_no_quotes_where_it_is_one_of_the_words(problems: Problems) -> None:
    text = f"{ROUTE}headers: off\n    usage: off\n    heartbeat: off\n    max_body: off\n"
    assert problems(text) == []
    assert problems("version: 1\nupstreams: {a: {base_url: http://h/v1, proxy: off}}\n") == []


def test_a_wrong_word_gets_the_nearest_one(problems: Problems) -> None:
    found = problems(f"{ROUTE}headers: ful\n")
    assert found == [
        "5:14: routes[0].headers: one of off, minimal, full is wanted, not ful (did you mean full?)"
    ]


def test_a_duration_says_what_is_wrong_and_whether_it_may_be_off(problems: Problems) -> None:
    assert problems(f"{ROUTE}commit_after: 5\n") == [
        "5:19: routes[0].commit_after: a duration is a number with a unit, such as 20ms, 5s, 10m or 24h, "
        "not 5 (did you mean 5s?)"
    ]
    assert problems(f"{ROUTE}heartbeat: no\n") == [
        "5:16: routes[0].heartbeat: a duration is a number with a unit, such as 20ms, 5s, 10m or 24h, "
        "or off, not no"
    ]
    assert problems(f"{ROUTE}commit_after: off\n") != []


def test_a_secret_never_shows_in_a_finding(problems: Problems) -> None:
    for written in ("20240102", "[sk-20240102]", "{sk-20240102: x}", '"20240102\\n"', '" 20240102"'):
        found = problems(f"version: 1\nupstreams:\n  a:\n    base_url: http://h/v1\n    api_key: {written}\n")
        assert len(found) == 1
        assert found[0].startswith("5:14: upstreams.a.api_key: ")
        assert "20240102" not in found[0]


def test_a_reference_in_flow_style_is_explained(problems: Problems) -> None:
    (problem,) = problems(
        "version: 1\nupstreams: {a: {base_url: http://h/v1, api_key: ${KEY}}}\n", {"KEY": "x"}
    )
    assert problem.startswith("2:")
    assert 'quote "${NAME}" between { and }' in problem
