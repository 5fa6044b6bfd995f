from __future__ import annotations

from proxy.cli.table import table


def test_words_stand_left_and_figures_right() -> None:
    text = table(["step", "applied", "share"], [["cap_output", 1200, "9.5%"], ["all", 7, "100.0%"]])
    assert text.splitlines() == [
        "step        applied   share",
        "cap_output    1,200    9.5%",
        "all               7  100.0%",
    ]


def test_unknown_figures_are_dashes_and_an_empty_table_is_its_heading() -> None:
    assert table(["a", "b"], [["x", None], ["y", -3]]).splitlines() == ["a   b", "x   -", "y  -3"]
    assert table(["a", "b"], []) == "a  b"
