"""Lines that change, as a policy declares them."""

from __future__ import annotations

import time

import pytest

from proxy.steps.align_prefix.volatile import BUILT_IN, Change, changes_of

NEVER, SOMETIMES, ALWAYS = Change.NEVER, Change.SOMETIMES, Change.ALWAYS


def change(line: str, *declared: str) -> Change:
    (found,) = changes_of([line], declared or BUILT_IN)
    return found


@pytest.mark.parametrize(
    "line",
    [
        "Today is 2026-11-30.",
        "Current date: 2026/11/30",
        "Date: 30.11.2026",
        "Today's date is 11/30/2026",
        "Today is Monday, 30 November 2026.",
        "The current date is November 30, 2026",
        "as of Nov. 30th, 2026",
        "30. June 2026",
        "2026-11-30",
        "Heute ist der 30.11.26!",
        "Today is 2026-11-30 (Monday)",
        "今天是2026年11月30日。",
        "**Today: 2026-11-30**",
    ],
)
def test_a_line_that_ends_with_a_date_is_one(line: str) -> None:
    assert change(line, "date") is SOMETIMES
    assert change(line, "time", "uuid", "hex") is NEVER


@pytest.mark.parametrize(
    "line",
    [
        "Now: 2026-11-30T18:05:31Z",
        "Now: 2026-11-30 18:05",
        "It is 30 November 2026, 6:05 pm UTC.",
        "It is 30 November 2026 at 18:05:31.25 +01:00",
    ],
)
def test_a_date_with_a_time_of_day_changes_always(line: str) -> None:
    assert change(line, "date") is ALWAYS


@pytest.mark.parametrize(
    ("name", "line", "expected"),
    [
        ("time", "The time is 18:05", ALWAYS),
        ("time", "Time: 6:05 PM (CET)", NEVER),
        ("time", "Time: 6:05 PM CET", ALWAYS),
        ("time", "Ratio 3:4", NEVER),
        ("uuid", "Session 1f1e2d3c-0000-4000-8000-00000000abcd is yours", SOMETIMES),
        ("uuid", "Session 1f1e2d3c-0000-4000-8000-00000000abcde", NEVER),
        ("hex", "trace: 4bf92f3577b34da6a3ce929d0e0e4736", SOMETIMES),
        ("hex", "trace: 4bf92f3577b34", NEVER),
        ("hex", "user 12345678901234567890", SOMETIMES),
        ("hex", "see 4bf92f3577b34da6a3ce929d0e0e4736 for more", NEVER),
    ],
)
def test_other_names(name: str, line: str, expected: Change) -> None:
    assert change(line, name) is expected


@pytest.mark.parametrize(
    "line",
    [
        "",
        "   ",
        "You are kind.",
        "The law of 12 May 1999 says so.",
        "Version 1.2.3",
        "Call 555-1234 now",
        "Since 2024-06-01 prices are higher.",
        "1999",
        "x" * 300 + " 2026-11-30",
    ],
)
def test_numbers_in_a_sentence_stay_where_they_are(line: str) -> None:
    assert change(line) is NEVER


def test_patterns_are_compared_with_the_whole_line() -> None:
    assert change("  User: Ann  ", "User: *") is SOMETIMES
    assert change("The User: Ann", "User: *") is NEVER
    assert change("Started at 18:05 by Ann", "Started *") is ALWAYS
    assert change("Started ...", "Started ...") is SOMETIMES
    assert change("", "*") is NEVER


def test_a_name_is_no_pattern() -> None:
    assert change("date", "date") is NEVER
    assert change("hex", "hex*") is SOMETIMES


def test_who_says_a_line_is_no_part_of_a_date() -> None:
    assert change("Assistant: 2026-11-30") is NEVER
    assert change("**User 2:** 2026-11-30") is NEVER
    assert change("Assistant: 2026-11-30", "Assistant: *") is SOMETIMES, "the policy says so itself"


@pytest.mark.parametrize(
    "line", ["1" * 200, "1:" * 100, "1-" * 100, "a1 " * 66, "0" * 199 + "g", "May " * 50]
)
def test_no_line_takes_long(line: str) -> None:
    start = time.process_time()
    changes_of([line] * 5000, (*BUILT_IN, "*a*b*c*"))
    assert time.process_time() - start < 5
