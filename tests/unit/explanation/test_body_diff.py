from __future__ import annotations

import json

import pytest

from proxy.explanation.body_diff import WIDTH, body_diff


def test_what_did_not_change_has_no_lines() -> None:
    assert body_diff(b'{"a": 1}', b'{"a":1}') == []


def test_changed_members_stand_below_each_other_with_some_context() -> None:
    before, after = b'{"a":1,"b":2,"c":3,"d":4,"e":5,"f":6}', b'{"a":1,"b":2,"c":3,"d":9,"e":5,"f":6}'
    assert body_diff(before, after) == [
        '    "b": 2,',
        '    "c": 3,',
        '-   "d": 4,',
        '+   "d": 9,',
        '    "e": 5,',
        '    "f": 6',
    ]


def test_changes_far_apart_are_kept_apart() -> None:
    before = {str(number): number for number in range(40)}
    after = before | {"2": 0, "37": 0}
    assert "  ..." in body_diff(json.dumps(before).encode(), json.dumps(after).encode())


def test_a_long_text_is_shown_around_its_change() -> None:
    before, after = "x" * 5000, "x" * 5000 + "\n\nBe brief."
    old, new = (line for line in body_diff(_body(before), _body(after)) if line[0] in "+-")
    assert len(old) < WIDTH
    assert "Be brief." in new
    assert "…" in new
    assert len(new) < WIDTH


def test_long_texts_that_come_and_go_are_cut() -> None:
    lines = body_diff(b'{"a":1}', b'{"a":1,"b":"%b"}' % (b"y" * 5000))
    assert all(len(line) < WIDTH + 40 for line in lines)
    assert any("characters" in line for line in lines)


@pytest.mark.parametrize("body", [b"not json", b"\xff\xfe", b'{"a":NaN}', b'{"a":"\\ud83d"}', b""])
def test_odd_bodies_can_be_shown(body: bytes) -> None:
    for line in body_diff(body, b'{"b":1}'):
        line.encode()


def _body(text: str) -> bytes:
    return json.dumps({"messages": [{"content": text}]}).encode()
