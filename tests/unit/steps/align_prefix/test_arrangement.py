"""Which lines go behind which."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.steps.align_prefix.arrangement import SystemText, arrange
from proxy.steps.align_prefix.volatile import Change

DATE = "Today is 2026-11-30."
TIME = "It is 18:05"


def arranged(*texts: str, can_go: bool = True) -> list[str | None]:
    found = arrange([SystemText(text, can_go) for text in texts], ("date", "time"))
    return [found.texts.get(number, text) for number, text in enumerate(texts)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (f"{DATE}\nBe kind.", f"Be kind.\n{DATE}"),
        (f"{DATE}\n\nBe kind.", f"Be kind.\n\n{DATE}"),
        (f"Be kind.\n\n{DATE}\n\nBe brief.", f"Be kind.\n\nBe brief.\n\n{DATE}"),
        (f"Be kind.\n{DATE}\nBe brief.", f"Be kind.\nBe brief.\n{DATE}"),
        (f"{DATE}\n{TIME}\n\nBe kind.\n", f"Be kind.\n\n{DATE}\n{TIME}\n"),
        (f"{DATE}\nBe kind.\n{TIME}", f"Be kind.\n{DATE}\n{TIME}"),
        (f"{DATE}\r\nBe kind.", f"Be kind.\n{DATE}\r"),
        (f"Be kind.\n{DATE}", f"Be kind.\n{DATE}"),
        (f"Be kind.\n\n{DATE}\n\n{TIME}\n", f"Be kind.\n\n{DATE}\n\n{TIME}\n"),
        (DATE, DATE),
        ("", ""),
        ("Be kind.", "Be kind."),
    ],
)
def test_what_changes_goes_behind_what_does_not(text: str, expected: str) -> None:
    assert arranged(text) == [expected]


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        ((DATE, "Be kind."), (None, f"Be kind.\n{DATE}")),
        ((f"Be kind.\n{DATE}", "Be brief."), ("Be kind.", f"Be brief.\n{DATE}")),
        ((f"{DATE}\nBe kind.", f"{TIME}\nBe brief."), ("Be kind.", f"Be brief.\n{DATE}\n{TIME}")),
        (("Be kind.", DATE), ("Be kind.", DATE)),
        ((f"{DATE}\nBe kind.", TIME), (f"Be kind.\n{DATE}", TIME)),
    ],
)
def test_it_goes_behind_the_last_of_several_texts(
    texts: tuple[str, ...], expected: tuple[str | None, ...]
) -> None:
    assert tuple(arranged(*texts)) == expected


def test_a_text_that_must_not_go_stays_and_the_prefix_is_no_stable_one() -> None:
    found = arrange([SystemText(DATE, False), SystemText("Be kind.", False)], ("date",))
    assert found.texts == {}
    assert not found.is_aligned


def test_it_tells_what_is_stable_and_how_often_the_rest_changes() -> None:
    found = arrange([SystemText("Be kind.", True), SystemText(f"{DATE}\nBe brief.\n", True)], ("date",))
    assert found.last == 1
    assert (found.texts[1] or "")[: found.stable_chars] == "Be brief."
    assert found.stable_texts == ("Be kind.", "Be brief.\n")
    assert (found.moved, found.change, found.is_aligned) == (1, Change.SOMETIMES, True)
    assert arrange([SystemText(f"Be brief.\n{TIME}", True)], ("time",)).change is Change.ALWAYS
    assert arrange([SystemText(DATE, True)], ("date",)).last == -1


LINES = st.lists(st.sampled_from(["Be kind.", "Be brief.", "", "  ", DATE, TIME, "```\nx\n```"]), max_size=9)


@given(texts=st.lists(LINES.map("\n".join), max_size=4))
def test_lines_are_moved_and_nothing_else(texts: list[str]) -> None:
    found = arrange([SystemText(text, True) for text in texts], ("date", "time"))
    after = [found.texts.get(number, text) for number, text in enumerate(texts)]

    def words(some: list[str | None]) -> Counter[str]:
        return Counter(line for text in some for line in (text or "").split("\n") if line.strip())

    assert words(after) == words(list(texts))
    again = arrange([SystemText(text, True) for text in after if text is not None], ("date", "time"))
    assert again.texts == {}, "arranging twice is arranging once"
    assert not found.moved or sum(map(len, filter(None, after))) <= sum(map(len, texts)) + len(texts)

    # What comes first is the same on any day.
    later = [text.replace("2026-11-30", "2027-01-01").replace("18:05", "09:11") for text in texts]
    on_that_day = arrange([SystemText(text, True) for text in later], ("date", "time"))
    assert on_that_day.stable_texts == found.stable_texts
    assert (on_that_day.last, on_that_day.stable_chars) == (found.last, found.stable_chars)
    if found.last >= 0:
        whole = [on_that_day.texts.get(number, text) for number, text in enumerate(later)]
        assert whole[: found.last] == after[: found.last]
        mine, theirs = after[found.last] or "", whole[found.last] or ""
        assert mine[: found.stable_chars] == theirs[: found.stable_chars]
