"""What is wrong with an input file, line by line, however it arrives in pieces."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.batch_server.lines import CheckedInput, LineChecker, request_body

URL = "/v1/chat/completions"


def line(custom_id: object = "a", **changes: Any) -> bytes:
    body = {"model": "m", "messages": [{"role": "user", "content": "hé"}]}
    whole = {"custom_id": custom_id, "method": "POST", "url": URL, "body": body} | changes
    return json.dumps({name: value for name, value in whole.items() if value is not ...}).encode()


def check(content: bytes, piece: int = 1 << 20, **limits: int) -> CheckedInput:
    checker = LineChecker(URL, **limits)
    for start in range(0, len(content), piece):
        checker.feed(content[start : start + piece])
    return checker.finish()


def problems(content: bytes, **limits: int) -> list[tuple[str, int | None, str | None]]:
    return [(each.code, each.line, each.param) for each in check(content, **limits).problems]


def test_a_good_file_tells_where_each_line_stands() -> None:
    content = line("a") + b"\n" + line("b", body={"model": "n"}) + b"\r\n" + line("c")
    checked = check(content)
    assert checked.problems == ()
    assert [(each.number, each.custom_id, each.model) for each in checked.lines] == [
        (0, "a", "m"),
        (1, "b", "n"),
        (2, "c", "m"),
    ]
    texts = [content[each.offset : each.offset + each.length] for each in checked.lines]
    assert texts == [line("a"), line("b", body={"model": "n"}), line("c")]
    assert request_body(texts[1]) == b'{"model": "n"}'
    assert checked.model == ""
    assert check(line("a") + b"\n" + line("b")).model == "m"


def test_a_body_stays_as_its_caller_wrote_it() -> None:
    raw = b'{"custom_id":"a","method":"POST","url":"/v1/x","body":{ "n" :1.0e0,"u":"\\u00e9" }}'
    assert request_body(raw) == b'{ "n" :1.0e0,"u":"\\u00e9" }'


@given(st.integers(1, 400), st.lists(st.sampled_from(["good", "bad", "blank", "again"]), max_size=8))
def test_it_does_not_matter_where_pieces_are_cut(piece: int, kinds: list[str]) -> None:
    texts = {"bad": b"{nonsense", "blank": b"  ", "again": line("same")}
    content = b"\n".join(texts.get(kind, line(f"id {index}")) for index, kind in enumerate(kinds))
    assert check(content, piece) == check(content)


@pytest.mark.parametrize("end", [b"", b"\n", b"\r\n", b"\n\n \t\n\r\n"])
def test_blank_lines_at_the_end_are_no_lines(end: bytes) -> None:
    checked = check(line() + end)
    assert (len(checked.lines), checked.problems) == (1, ())


def test_a_blank_line_in_between_is_a_problem() -> None:
    assert problems(line("a") + b"\n\n\n" + line("b")) == [("invalid_json_line", 2, None)]


@pytest.mark.parametrize("content", [b"", b"\n", b" \r\n\n"])
def test_a_file_without_lines_is_empty(content: bytes) -> None:
    assert problems(content) == [("empty_file", None, None)]


def test_a_byte_order_mark_is_no_part_of_the_first_line() -> None:
    content = b"\xef\xbb\xbf" + line()
    (only,) = check(content, piece=2).lines
    assert content[only.offset : only.offset + only.length] == line()


@pytest.mark.parametrize(
    "text",
    [
        b"{nonsense",
        b"[]",
        b'"text"',
        b"null",
        line()[:-1],
        line() + line("b"),
        line().replace(b"POST", b"PO\0ST"),
        line().replace(b'"a"', b'"\xff"'),
        "ünï".encode("utf-16"),
    ],
)
def test_what_is_no_object_in_utf_8_is_no_line(text: bytes) -> None:
    assert problems(text) == [("invalid_json_line", 1, None)]


@pytest.mark.parametrize("name", ["custom_id", "method", "url", "body"])
@pytest.mark.parametrize("value", [..., None])
def test_a_missing_field_is_named(name: str, value: object) -> None:
    assert problems(line(**{name: value})) == [("missing_required_parameter", 1, name)]


@pytest.mark.parametrize(
    ("changes", "param"),
    [
        ({"custom_id": 7}, "custom_id"),
        ({"custom_id": "x" * 513}, "custom_id"),
        ({"custom_id": "\ud800"}, "custom_id"),
        ({"method": "GET"}, "method"),
        ({"method": 1}, "method"),
        ({"body": []}, "body"),
        ({"body": "text"}, "body"),
        ({"body": {"stream": True}}, "body.stream"),
        ({"body": {"stream": "true"}}, "body.stream"),
        ({"body": {"background": True}}, "body.background"),
    ],
)
def test_a_wrong_value_is_named(changes: dict[str, Any], param: str) -> None:
    assert problems(line(**changes)) == [("invalid_request", 1, param)]


def test_a_duplicated_stream_is_no_way_around() -> None:
    text = line().replace(b'"model"', b'"stream":true,"stream":false,"model"')
    assert problems(text) == [("invalid_request", 1, "body.stream")]


def test_a_stream_that_is_off_is_no_problem() -> None:
    assert problems(line(body={"stream": False, "background": None})) == []


def test_an_empty_custom_id_is_missing() -> None:
    assert problems(line("")) == [("missing_required_parameter", 1, "custom_id")]


def test_the_longest_custom_id_is_taken() -> None:
    assert problems(line("é" * 512)) == []


def test_a_url_has_to_be_the_endpoint() -> None:
    assert problems(line(url="/v1/embeddings")) == [("url_mismatch", 1, "url")]


def test_a_custom_id_is_used_once() -> None:
    content = b"\n".join([line("a"), line("b"), line("a"), line("a")])
    assert problems(content) == [
        ("duplicate_custom_id", 3, "custom_id"),
        ("duplicate_custom_id", 4, "custom_id"),
    ]


def test_deep_json_is_refused() -> None:
    deep = b"[" * 5000 + b"]" * 5000
    assert problems(line().replace(b'"h\\u00e9"', deep)) == [("invalid_request", 1, None)]


def test_a_line_that_is_too_long_costs_only_itself() -> None:
    content = line("a") + b"\n" + line("b" * 400) + b"\n" + line("c")
    checked = check(content, piece=50, max_line_bytes=300)
    assert [each.custom_id for each in checked.lines] == ["a", "c"]
    assert [(each.code, each.line) for each in checked.problems] == [("invalid_request", 2)]
    last = checked.lines[-1]
    assert content[last.offset : last.offset + last.length] == line("c")


def test_too_many_lines_are_one_problem_and_the_rest_is_not_read() -> None:
    content = b"\n".join(line(str(number)) for number in range(4))
    checker = LineChecker(URL, max_lines=3)
    checker.feed(content)
    assert checker.is_hopeless
    checker.feed(b"\n{nonsense" * 1000)
    checked = checker.finish()
    assert [(each.code, each.line) for each in checked.problems] == [("too_many_tasks", None)]
    assert len(checked.lines) == 3


def test_too_many_blank_lines_before_a_line_are_too_many_lines() -> None:
    assert problems(b"\n" * 5 + line(), max_lines=3) == [("too_many_tasks", None, None)]


def test_as_many_lines_as_allowed_may_end_in_blank_ones() -> None:
    content = b"\n".join(line(str(number)) for number in range(3)) + b"\n" * 500
    assert problems(content, max_lines=3) == []


def test_a_hundred_problems_are_kept_and_all_are_counted() -> None:
    checked = check(b"x\n" * 250)
    assert (len(checked.problems), checked.problem_count) == (100, 250)


def test_a_model_that_cannot_be_written_is_written_otherwise() -> None:
    (only,) = check(line(body={"model": "\ud800" + "x" * 1000})).lines
    assert only.model.encode()
    assert len(only.model) <= 256


def test_lines_without_a_model_are_for_servers_that_have_one() -> None:
    assert check(line(body={})).lines[0].model == ""
