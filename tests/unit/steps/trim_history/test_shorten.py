"""Texts get shorter on code points, JSON stays JSON, and neither takes long."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.steps.trim_history.shorten import JsonRule, Shortening, Side, cut


def count(text: str) -> int:
    return len(text.encode("utf-8", "surrogatepass")) // 4


def shortening(side: Side = "end", rule: JsonRule = "elements", marker: str = "") -> Shortening:
    return Shortening(side, rule, marker, count)


@pytest.mark.parametrize(("side", "expected"), [("end", "0123|"), ("start", "|6789"), ("middle", "01|89")])
def test_a_text_is_cut_where_it_should_be(side: Side, expected: str) -> None:
    assert cut("0123456789", 4, side, "|") == expected
    assert cut("0123", 4, side, "|") == "0123"


def test_what_fits_is_the_same_object() -> None:
    text = "word " * 20
    assert shortening().shortened(text, 25) is text


@pytest.mark.parametrize("side", ["end", "middle", "start"])
def test_a_long_text_uses_its_limit_up(side: Side) -> None:
    shorter = shortening(side, marker=" […] ").shortened("é你😀 and words " * 10_000, 1000)
    assert 900 <= count(shorter) <= 1000
    shorter.encode("utf-8")
    assert " […] " in shorter


def test_an_array_keeps_its_first_elements_as_they_were_spelled() -> None:
    text = "[" + " ,\n".join(f'{{"id": {n}, "price": 1.0, "name": "é😀"}}' for n in range(500)) + " ]"
    shorter = shortening().shortened(text, 500)
    kept = json.loads(shorter)
    assert [row["id"] for row in kept] == list(range(len(kept)))
    assert 400 <= count(shorter) <= 500
    assert text.startswith(shorter[:-2])
    assert shorter.endswith(" ]")


@pytest.mark.parametrize(
    ("side", "ids"), [("start", [97, 98, 99]), ("middle", [0, 1, 99]), ("end", [0, 1, 2])]
)
def test_the_elements_that_stay_are_from_the_right_end(side: Side, ids: list[int]) -> None:
    text = json.dumps([{"id": n, "text": "word " * 50} for n in range(100)])
    assert [row["id"] for row in json.loads(shortening(side).shortened(text, 220))] == ids


@pytest.mark.parametrize(
    ("value", "check"),
    [
        ({"total": 900, "rows": list(range(5_000))}, lambda v: v["total"] == 900 and len(v["rows"]) > 100),
        ({"code": 0, "stdout": "line\n" * 5_000}, lambda v: v["code"] == 0 and "line\nline" in v["stdout"]),
        ([{"text": "word " * 5_000}], lambda v: v[0]["text"].startswith("word word")),
        ({"a": {"b": {"c": ["word " * 5_000]}}}, lambda v: v["a"]["b"]["c"][0].startswith("word")),
        (json.dumps([{"n": n} for n in range(5_000)]), lambda v: json.loads(v)[1] == {"n": 1}),
        ("word " * 5_000, lambda v: v.startswith("word")),
        ({str(n): n for n in range(5_000)}, lambda v: v == {}),
        ([[[[[[[["word " * 5_000]]]]]]]], lambda v: v == []),
    ],
)
def test_json_stays_json_of_the_same_shape(value: Any, check: Any) -> None:
    for ascii_only in (True, False):
        shorter = shortening().shortened(json.dumps(value, ensure_ascii=ascii_only), 400)
        assert check(json.loads(shorter)), shorter
        assert count(shorter) <= 400


@pytest.mark.parametrize(
    ("rule", "expected"),
    [("drop", "[]"), ("keep", None), ("text", '[{"id": 0, "t')],
)
def test_json_is_treated_by_the_rule(rule: JsonRule, expected: str | None) -> None:
    text = json.dumps([{"id": n, "text": "word"} for n in range(100)])
    shorter = shortening(rule=rule).shortened(text, 20)
    assert shorter.startswith(expected if expected is not None else text)


def test_an_object_and_a_quoted_text_can_be_dropped() -> None:
    assert shortening(rule="drop").shortened('{"a": "' + "b" * 200 + '"}', 20) == "{}"
    assert shortening(rule="drop").shortened('"' + "b" * 200 + '"', 20) == '""'


@pytest.mark.parametrize(
    "text", ['{"a": 1} {"b": 2} ' * 50, "[1, 2, " * 50, '"open ' * 50, "{not json}" * 20]
)
def test_what_only_looks_like_json_is_text(text: str) -> None:
    assert shortening().shortened(text, 20) == text[:80]


def test_half_a_surrogate_pair_survives() -> None:
    text = "[" + ",".join(['"\\ud83d"'] * 200) + ',"\ud83d"]'
    shorter = shortening().shortened(text, 50)
    assert json.loads(shorter)[0] == "\ud83d"
    assert shortening().shortened("x\ud83d" * 200, 50) == ("x\ud83d" * 50)


TEXTS = st.one_of(
    st.text(max_size=300),
    st.recursive(
        st.one_of(st.text(max_size=40), st.integers(), st.none()),
        lambda inner: st.one_of(
            st.lists(inner, max_size=8), st.dictionaries(st.text(max_size=5), inner, max_size=5)
        ),
        max_leaves=40,
    ).map(json.dumps),
)


@given(
    text=TEXTS,
    limit=st.integers(0, 60),
    side=st.sampled_from(["end", "middle", "start"]),
    rule=st.sampled_from(["elements", "drop", "text", "keep"]),
    marker=st.sampled_from(["", "…"]),
)
def test_never_longer_never_broken_and_done_once(
    text: str, limit: int, side: Side, rule: JsonRule, marker: str
) -> None:
    tool = shortening(side, rule, marker)
    shorter = tool.shortened(text, limit)
    assert shorter is text or count(shorter) < count(text)
    assert tool.shortened(shorter, max(limit, count(shorter))) is shorter
    if rule != "text" and text.lstrip()[:1] in ("[", "{", '"') and _is_json(text):
        assert type(json.loads(shorter)) is type(json.loads(text))


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    return True


@pytest.mark.parametrize(
    "text",
    [
        "a" * 1_000_000,
        "x" * 300_000,
        " " * 1_100_000,
        "你" * 300_000,
        json.dumps(["a" * 1_000_000]),
        json.dumps([0] * 300_000),
        json.dumps({str(n): n for n in range(50_000)}),
        "[" * 900 + "1" + "]" * 900,
        "[" * 100_000,
        '{"a":' * 100_000,
    ],
    ids=["word", "equal", "spaces", "cjk", "one", "many", "keys", "deep", "open", "open keys"],
)
@pytest.mark.parametrize("limit", [16, 1000])
def test_any_text_is_shortened_in_time(text: str, limit: int) -> None:
    started = time.process_time()
    assert count(shortening().shortened(text, limit)) <= limit
    assert time.process_time() - started < 3
