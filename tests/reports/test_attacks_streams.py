"""Streams that say the same in other words: their ends are understood, and nothing of theirs is mangled."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.chat import CHAT_STREAM, PATH, chat_policy, delta, finish
from tests.support.raw_upstream import Call
from tests.support.served import served

CHUNK = '{"id":"1","choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}'
SPELLINGS = {
    "spaced": CHUNK.replace('":"stop"', '" : "stop"'),
    "tabbed": CHUNK.replace('":"stop"', '"\t:\t"stop"'),
    "two spaces": CHUNK.replace('":"stop"', '":  "stop"'),
    "key in escapes": CHUNK.replace("finish_reason", "finish\\u005freason"),
    "key in other escapes": CHUNK.replace("finish", "\\u0066inish"),
    "every letter": CHUNK.replace("finish_reason", "".join(f"\\u{ord(c):04X}" for c in "finish_reason")),
    "over lines": CHUNK.replace('":"stop"', '":\ndata: "stop"'),
    "over more lines": CHUNK.replace('"finish', '\ndata:"finish').replace(
        '":"stop"', '"\ndata::\ndata:"stop"'
    ),
    "pretty": json.dumps(json.loads(CHUNK), indent=2).replace("\n", "\ndata: "),
}


@pytest.mark.parametrize("has_usage", [False, True])
@pytest.mark.parametrize("spelling", SPELLINGS)
def test_the_last_word_of_a_stream_may_be_spelt_in_any_way(
    tmp_path: Path, spelling: str, has_usage: bool
) -> None:
    last = f"data: {SPELLINGS[spelling]}\n\n".encode()

    def script(call: Call) -> None:
        call.stream_head()
        for event in (delta("hel"), delta("lo"), last):
            call.chunk(event)
        call.end_chunks()

    with served(tmp_path, script, chat_policy(f"usage: {'ask' if has_usage else 'off'}")) as (proxy, _):
        answer = proxy.client().request("POST", PATH, CHAT_STREAM)
        (record,) = proxy.log(1)
    assert answer.body == delta("hel") + delta("lo") + last
    assert answer.is_whole
    assert (record["error"], record["finish_reason"]) == (None, "stop")


def ended(indices: list[int | None]) -> bytes:
    return b"".join(
        finish() if index is None else finish().replace(b'"index":0', b'"index":%d' % index)
        for index in indices
    )


@pytest.mark.parametrize(
    ("indices", "is_whole"),
    [([0, 1], True), ([1, 0], True), ([0, 0], False), ([1, 1, 1], False), ([0], False), ([0, 0, 1], True)],
)
def test_a_choice_that_ends_twice_is_one_choice(
    tmp_path: Path, indices: list[int | None], is_whole: bool
) -> None:
    def script(call: Call) -> None:
        call.stream_head()
        call.chunk(delta("hello"))
        call.chunk(ended(indices))
        call.end_chunks()

    with served(tmp_path, script, chat_policy()) as (proxy, _):
        body = CHAT_STREAM.replace(b'"stream"', b'"n":2,"stream"')
        answer = proxy.client().request("POST", PATH, body)
        (record,) = proxy.log(1)
    assert answer.is_whole is is_whole
    assert record["error"] == (None if is_whole else "upstream_closed")


NULL = '"usage":null'
KEPT = {
    "in a choice": '{"choices":[{"index":0,"delta":{"content":"x"},"usage":null}]}',
    "in a choice beside a real one": '{"choices":[{"x":1,"usage":null}],"usage":{"prompt_tokens":1},"c":[]}',
    "deeply nested": '{"a":{"b":{"c":1,"usage":null}}}',
    "in a string": '{"choices":[{"delta":{"content":",\\"usage\\":null"}}]}',
    "under another spelling": '{"us\\u0061ge":1,"a":{"b":2,"usage":null}}',
    "beside another spelling": '{"us\\u0061ge":null,"a":{"b":2,"usage":null},"us\\u0061ge":2}',
    "no JSON": 'hello,"usage":null}',
    "cut JSON": '{"a":{"b":1,"usage":null}',
    "JSON and more": '{"a":1}{"b":1,"usage":null}',
    "broken JSON": '{"a":,"usage":null}',
    "an array": '[1,{"b":1,"usage":null}]',
    "over lines": '{"a":1\ndata: ,"usage":null}',
    "a value": '{"choices":[{}],"usage":null,"usage":{"prompt_tokens":3}}',
}
TRIMMED = {
    "last": ('{"a":1,"usage":null}', '{"a":1}'),
    "not last": ('{"a":1,"usage":null,"b":[{}]}', '{"a":1,"b":[{}]}'),
    "first": ('{"usage":null,"a":1}', '{"a":1}'),
    "beside one in a choice": ('{"c":[{"x":{"y":1,"usage":null}}],"usage":null}', None),
    "beside a deep one": ('{"c":{"x":{"y":1,"usage":null}},"usage":null}', None),
    "after one in a string": ('{"a":",\\"usage\\":null","usage":null}', '{"a":",\\"usage\\":null"}'),
    "spaced": ('{"a":1, "usage" : null}', None),
    "in escapes elsewhere": ('{"a":"\\u0061","usage":null}', '{"a":"\\u0061"}'),
}
COMMENT = ': see {"a":1,"usage":null}\n'


def relayed(tmp_path: Path, *events: bytes) -> bytes:
    def script(call: Call) -> None:
        call.stream_head()
        for event in (delta("x"), *events, finish()):
            call.chunk(event)
        call.end_chunks()

    with served(tmp_path, script, chat_policy("usage: ask")) as (proxy, _):
        body = proxy.client().request("POST", PATH, CHAT_STREAM).body
    return body.removeprefix(delta("x")).removesuffix(finish())


@pytest.mark.parametrize("before", ["", COMMENT, "event: x\n"])
def test_a_null_usage_that_is_not_surely_the_answers_own_stays(tmp_path: Path, before: str) -> None:
    for name, data in KEPT.items():
        event = f"{before}data: {data}\n\n".encode()
        assert relayed(tmp_path, event) == event, name


def test_a_null_usage_in_a_comment_stays(tmp_path: Path) -> None:
    for event in (f"{COMMENT}\n".encode(), f'{COMMENT}data: {{"a":1}}\n\n'.encode()):
        assert relayed(tmp_path, event) == event


def test_the_null_usage_of_the_answer_goes_and_nothing_else(tmp_path: Path) -> None:
    for name, (data, expected) in TRIMMED.items():
        event = f"data: {data}\n\n".encode()
        got = relayed(tmp_path, event)
        want = json.loads(data)
        del want["usage"]
        assert json.loads(got.removeprefix(b"data: ")) == want, name
        if expected is not None:
            assert got == f"data: {expected}\n\n".encode(), name
        twice = relayed(tmp_path, event + event)
        assert twice == got + got, name
