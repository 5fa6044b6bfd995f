"""Which lines go behind which."""

from __future__ import annotations

import time
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
        (f"{DATE}\n\nBe kind.", f"Be kind.\n\n{DATE}"),
        (f"Be kind.\n\n{DATE}\n\nBe brief.", f"Be kind.\n\nBe brief.\n\n{DATE}"),
        (f"{DATE}\n{TIME}\n\nBe kind.\n", f"Be kind.\n\n{DATE}\n{TIME}\n"),
        (f"{DATE}\n\nBe kind.\n\n{TIME}", f"Be kind.\n\n{DATE}\n\n{TIME}"),
        (f"{DATE}\r\n\r\nBe kind.", f"Be kind.\r\n\r\n{DATE}"),
        (f"{DATE}\r\n\r\nBe kind.\r\nBe brief.\r\n", f"Be kind.\r\nBe brief.\r\n\r\n{DATE}\r\n"),
        (f"Be kind.\n\n{DATE}\r\n\r\nBe brief.\n", f"Be kind.\n\nBe brief.\n\r\n{DATE}\r\n"),
        (f"Be kind.\n\n{DATE}\n\n{TIME}\n", f"Be kind.\n\n{DATE}\n\n{TIME}\n"),
        (f"{DATE}\n\nBe kind.\n{TIME}", f"Be kind.\n{TIME}\n\n{DATE}"),
        (f"Be kind.\n{DATE}", f"Be kind.\n{DATE}"),
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
        ((DATE, "Be kind."), (None, f"Be kind.\n\n{DATE}")),
        ((f"Be kind.\n\n{DATE}", "Be brief."), ("Be kind.", f"Be brief.\n\n{DATE}")),
        (
            (f"{DATE}\n\nBe kind.", f"{TIME}\n\nBe brief."),
            ("Be kind.", f"Be brief.\n\n{DATE}\n\n{TIME}"),
        ),
        (("Be kind.", DATE), ("Be kind.", DATE)),
        ((f"{DATE}\n\nBe kind.", TIME), (f"Be kind.\n\n{DATE}", TIME)),
        ((DATE, "- Be kind."), (None, f"- Be kind.\n\n{DATE}")),
    ],
)
def test_it_goes_behind_the_last_of_several_texts(
    texts: tuple[str, ...], expected: tuple[str | None, ...]
) -> None:
    assert tuple(arranged(*texts)) == expected


@pytest.mark.parametrize("end", ["", "\n", "\n\nBe kind."])
@pytest.mark.parametrize("begin", ["", "Be kind.\n\n"])
@pytest.mark.parametrize(
    "text",
    [
        f"{DATE}\nBe kind.",
        f"Be kind.\n{DATE}\nBe brief.",
        "The contract was signed on March 3, 2024\nand is void unless renewed.",
        "Deadlines:\n- Income tax: 2026-04-15\n- VAT: 2026-05-10\nAlways mention them.",
        "Deadlines:\n\n- Income tax: 2026-04-15\n\n- VAT: 2026-05-10",
        "Deadlines:\n\n1. Income tax: 2026-04-15\n2) VAT: 2026-05-10",
        "* Deadlines\n\n  Income tax: 2026-04-15\n\n* Else",
        "Released:\n\n2026-11-30",
        "## Released\n\n2026-11-30",
        "Released\n--------\n\n2026-11-30",
        "**Released**\n\n2026-11-30",
        "# News of 2026-11-30",
        "As of 2026-11-30:\n\nPrices are higher.",
        f"<context>\n\n{DATE}\n\n</context>",
        f"<context id='1'>\n\n<day>\n\n{DATE}\n\n</day>\n\nBe kind.\n\n</context>",
        f"<context>\n\n{DATE}\n\n</CONTEXT>",
        f"[context]\n\n{DATE}\n\n[/context]",
        "<day>2026-11-30</day>",
        "User: When is it?\n\nAssistant: 2024-01-01\n\nUser: And the other?\n\nAssistant: 2024-02-02",
        "Q: When?\n\nA: 2024-01-01",
        "| a | b |\n|---|---|\n| x | 2024-01-01\n| y | 2024-01-02 |",
        "| x | 2024-01-01 |",
        "Day | 2024-01-01 |",
        "> Written on\n> 2026-11-30",
        "> 2026-11-30",
        "Example\n\n    released = 2024-01-01\n\n\t2024-01-01",
        f"```\n\n{DATE}\n\n```",
        f"````md\n```\n\n{DATE}\n\n```\n\n{DATE}\n\n````",
        f"```md\nexample\n~~~\n\n{DATE}\n\n~~~\n```",
        f"~~~\n\n{DATE}\n\n```\n\n{DATE}\n\n~~~",
        f"```\n    ```\n\n{DATE}\n\n```",
        f"```\n``` no end\n\n{DATE}\n\n```",
    ],
)
def test_what_belongs_to_its_neighbours_stays(text: str, begin: str, end: str) -> None:
    whole = begin + text + end
    assert arranged(whole) == [whole]


@pytest.mark.parametrize(
    "text",
    [
        f"<rules>\nBe kind.\n\n{DATE}\n\nBe brief.",
        f"Be kind.\n\n{DATE}\n\nBe brief.\n</rules>",
        f"{DATE}\n\n```\nBe kind.",
        f"- Be kind.\n\n    ```\n    x\n    ```\n\n{DATE}\n\nBe brief.",
    ],
)
def test_what_nobody_can_tell_the_end_of_stays(text: str) -> None:
    assert arranged(text) == [text]


@pytest.mark.parametrize(
    "text",
    [
        f"<b>Be</b> kind <user>\n\n{DATE}\n\n<br>\n\nUse <x/> and [links].",
        f"<a>\nBe kind.\n</a>\n\n{DATE}\n\n<b>\nBe brief.\n</b>",
        f"```\nx\n```\n\n{DATE}\n\n~~~\ny\n~~~",
        f"- Be kind.\n\n{DATE}\n\n- Be brief.",
        f"User: Be kind.\n\n{DATE}\n\nBe brief.",
        f"Be `kind`: yes\n\n{DATE}\n\n`x` ``` y ```\n\nBe brief.",
        "Be kind.\n\n30. June 2026\n\nBe brief.",
    ],
)
def test_a_paragraph_of_its_own_goes_from_anywhere_else(text: str) -> None:
    (after,) = arranged(text)
    assert after is not None
    assert after.endswith(("\n\n" + DATE, "\n\n30. June 2026"))


def test_tags_may_end_in_another_text() -> None:
    texts = ("<context>", DATE, "</context>", "Be kind.")
    assert arranged(*texts) == list(texts)


def test_what_changes_among_other_words_ends_what_is_stable() -> None:
    found = arrange([SystemText(f"{TIME}\nBe kind.\n\nBe brief.", True)], ("time",))
    assert (found.texts, found.is_aligned, found.change) == ({}, False, Change.ALWAYS)
    assert found.stable_texts == ("Be kind.\n\nBe brief.",), "so that keys do not change with it"
    found = arrange([SystemText(f"Be kind.\n{TIME}", True)], ("time",))
    assert (found.is_aligned, found.stable_chars) == (True, len("Be kind.")), (
        "it stands behind what is stable"
    )


@pytest.mark.parametrize("piece", ["<a", "<a>\n", "</a>\n", "[a", "```\n", "|", "<a>\n</a>\n", "user: \n"])
def test_no_structure_takes_long(piece: str) -> None:
    start = time.process_time()
    arrange([SystemText(piece * 40_000 + f"\n\n{DATE}\n\nx", True)], ("date",))
    assert time.process_time() - start < 5


def test_a_text_that_must_not_go_stays_and_the_prefix_is_no_stable_one() -> None:
    found = arrange([SystemText(DATE, False), SystemText("Be kind.", False)], ("date",))
    assert found.texts == {}
    assert not found.is_aligned


def test_it_tells_what_is_stable_and_how_often_the_rest_changes() -> None:
    found = arrange([SystemText("Be kind.", True), SystemText(f"{DATE}\n\nBe brief.\n", True)], ("date",))
    assert found.last == 1
    assert (found.texts[1] or "")[: found.stable_chars] == "Be brief."
    assert found.stable_texts == ("Be kind.", "Be brief.")
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
    assert not found.moved or sum(map(len, filter(None, after))) <= sum(map(len, texts)) + 2 * len(texts)

    # What comes first is the same on any day.
    later = [text.replace("2026-11-30", "2027-01-01").replace("18:05", "09:11") for text in texts]
    on_that_day = arrange([SystemText(text, True) for text in later], ("date", "time"))
    assert on_that_day.stable_texts == found.stable_texts
    assert (on_that_day.last, on_that_day.stable_chars) == (found.last, found.stable_chars)
    if found.last >= 0 and found.is_aligned:
        whole = [on_that_day.texts.get(number, text) for number, text in enumerate(later)]
        assert whole[: found.last] == after[: found.last]
        mine, theirs = after[found.last] or "", whole[found.last] or ""
        assert mine[: found.stable_chars] == theirs[: found.stable_chars]
