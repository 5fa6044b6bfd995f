"""Editing one field leaves every other byte alone, and the length right (reports B36-B42, B47)."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.support.chat import ANSWER, CHAT, CHAT_STREAM, DONE, PATH, chat_policy, delta, finish
from tests.support.raw_upstream import Call, RawUpstream
from tests.support.weir import weir

CAP = "steps: [{cap_output: {max: 50}}]"
EVERYTHING = [
    "steps: [{cap_output: {default: 7}}, {add_stop: ['###']}, {set_params: {top_p: {default: 1}}}]",
    "allow_caller: [x-weir-urgency, x-weir-deadline, prefer]",
    "urgency: {default: deferrable, deadline: 2h}",
    "batch: {upstream_tiers: [flex, batch]}",
    "coalesce: {max_wait: 1ms}",
    "timing_comment: true",
    "max_concurrent: 9",
]
ADDED = b',"max_tokens":7,"stop":["###"],"top_p":1'


def answer_ok(call: Call) -> None:
    call.json(ANSWER)


def calls(
    tmp_path: Path, policies: str | None, *bodies: bytes, headers: list[tuple[str, str]] | None = None
) -> list[Call]:
    """Return the calls that an upstream gets for these bodies."""
    with RawUpstream(answer_ok) as upstream, weir(tmp_path, upstream.url, policies) as proxy:
        for body in bodies:
            assert proxy.client().request("POST", PATH, body, headers or []).status == 200
        return upstream.calls


# B36
UNKNOWN = (
    '"chat_template_kwargs":{"enable_thinking":false,"x":null,"y":{},"z":[]},"guided_json":{"type":"object"},'
    '"provider":{"order":["a"],"allow_fallbacks":false},"seed":-0,"seed2":null,"top_k":-1,"":"","a.b":{"c":1}'
)


@pytest.mark.parametrize("is_edited", [False, True])
def test_unknown_fields_arrive_with_their_types_and_in_their_order(tmp_path: Path, is_edited: bool) -> None:
    body = f'{{"model":"m",{UNKNOWN},"messages":[],"max_tokens":900,"zz":{{}}}}'.encode()
    sent = calls(tmp_path, chat_policy(CAP) if is_edited else chat_policy(), body)[0].body
    assert sent == (body.replace(b"900", b"50") if is_edited else body)


# B37
@pytest.mark.parametrize("body", [CHAT, CHAT[:-1] + b',"metadata":{"k":"v"},"service_tier":"auto"}'])
def test_nothing_of_weirs_own_reaches_the_upstream(tmp_path: Path, body: bytes) -> None:
    steering = [("X-Weir-Urgency", "deferrable"), ("X-Weir-Deadline", "1h"), ("x-weir-anything", "1")]
    call = calls(tmp_path, chat_policy(*EVERYTHING), body, headers=[*steering, ("X-Own", "1")])[0]
    assert call.body == body[:-1] + ADDED + b"}"
    names = [name.lower() for name, _ in call.headers]
    assert names == [b"host", b"content-length", b"content-type", b"x-own"]
    assert b"weir" not in call.head.lower()


# B37
def test_a_stream_gets_its_options_and_nothing_else(tmp_path: Path) -> None:
    call = calls(tmp_path, chat_policy(*EVERYTHING), CHAT_STREAM)[0]
    asked = b',"stream_options":{"include_usage":true}'
    assert call.body == CHAT_STREAM[:-1] + ADDED + asked + b"}"


# B38
@pytest.mark.parametrize(
    "literal",
    [
        "9007199254740993",
        "-0",
        "1e400",
        "-1E+2",
        "1.10",
        "0.10000000000000000555",
        "1E2",
        "0e0",
        "9" * 5000,
        "1e-400",
    ],
)
@pytest.mark.parametrize("place", ['"x":{}', '"logit_bias":{{"1":{}}}', '"a":[[{}]]', '"temperature":{}'])
def test_numbers_keep_their_characters_beside_an_edit(tmp_path: Path, literal: str, place: str) -> None:
    body = f'{{"model":"m",{place.format(literal)},"max_tokens":900}}'.encode()
    sent = calls(tmp_path, chat_policy(CAP), body)[0].body
    assert sent == body.replace(b'"max_tokens":900', b'"max_tokens":50')


# B39
def tools() -> bytes:
    """Return thirty tools whose keys are in no order that a serialiser would choose."""
    names = [f"{chr(122 - number % 26)}{number}" for number in range(30)]
    parameters = (
        '{"type":"object","required":["b","a"],"properties":{"b":{"type":"string"},"a":{"type":"integer"}}}'
    )
    texts = [
        f'{{"type":"function","function":{{"parameters":{parameters},"name":"{name}"}}}}' for name in names
    ]
    return ("[" + ", ".join(texts) + "]").encode()


@pytest.mark.parametrize(
    ("policy", "before", "after"),
    [
        (CAP, b'"max_tokens":900,', b'"max_tokens":50,'),
        ("steps: [{cap_output: {default: 50, default_for_structured: true}}]", b"", b""),
    ],
    ids=["lowered", "appended"],
)
def test_a_cached_prefix_keeps_its_bytes_call_after_call(
    tmp_path: Path, policy: str, before: bytes, after: bytes
) -> None:
    body = b'{"tools":%b,"model":"m",%b"messages":[{"role":"user","content":"hi"}]}' % (tools(), before)
    first, second = calls(tmp_path, chat_policy(policy), body, body)
    expected = body.replace(before, after) if before else body[:-1] + b',"max_tokens":50}'
    assert first.body == second.body == expected


# B40
@pytest.mark.parametrize(
    "policies", [None, chat_policy(), chat_policy(CAP)], ids=["unmatched", "matched", "idle"]
)
def test_a_body_that_nothing_changes_is_not_encoded_again(tmp_path: Path, policies: str | None) -> None:
    text = '{\n  "a" : "<\\/b>é\\u00e9你",\r\n\t"messages": [ ],\n  "model": "m"\n}\n'.encode()
    call = calls(tmp_path, policies, text)[0]
    assert call.body == text
    assert call.header("content-length") == b"%d" % len(text)


# B41
@pytest.mark.parametrize("escape", [r"\ud83c", r"\ude00", r"\ud800\ud800", r"\uD83C x \uDF89"])
@pytest.mark.parametrize(
    "policies",
    [
        chat_policy(),
        chat_policy(CAP),
        chat_policy(*EVERYTHING),
        chat_policy("match: {tokens: {min: 1}, path: /v1/*}"),
    ],
    ids=["none", "cap", "all", "counted"],
)
def test_lone_surrogates_pass_as_written_beside_an_edit(tmp_path: Path, escape: str, policies: str) -> None:
    if "tokens" in policies:
        policies = policies.replace(f"    match: {{path: {PATH}}}\n", "")
    messages = f'[{{"role":"user","content":"{escape}"}}]'
    body = f'{{"model":"{escape}","messages":{messages},"max_tokens":900}}'.encode()
    sent = calls(tmp_path, policies, body)[0].body
    kept = body[: body.index(b',"max_tokens"')]
    assert sent.startswith(kept)
    assert b'"max_tokens":50' in sent if CAP in policies else b'"max_tokens":900' in sent


# B42
@pytest.mark.parametrize("literal", ["NaN", "Infinity", "-Infinity"])
def test_a_literal_that_is_no_json_passes_as_written_and_none_is_made(tmp_path: Path, literal: str) -> None:
    body = f'{{"model":"m","messages":[],"temperature":{literal},"max_tokens":900}}'.encode()
    assert calls(tmp_path, chat_policy(CAP), body)[0].body == body.replace(b"900", b"50")
    as_cap = f'{{"model":"m","max_tokens":{literal}}}'.encode()
    sent = calls(tmp_path, chat_policy(CAP), as_cap)[0].body
    assert sent in (as_cap, b'{"model":"m","max_tokens":50}')
    assert (literal == "-Infinity") == (sent == as_cap)


# B42
@pytest.mark.parametrize("is_stream", [False, True])
def test_such_literals_in_answers_pass_untouched(tmp_path: Path, is_stream: bool) -> None:
    whole = b'{"choices":[{"logprobs":-Infinity,"finish_reason":"stop"}],"usage":{"prompt_tokens":NaN}}'
    stream = (
        b'data: {"choices":[{"delta":{"content":"x"},"logprobs":-Infinity}]}\n\n'
        + delta("y")
        + finish()
        + DONE
    )

    def script(call: Call) -> None:
        if is_stream:
            call.stream_head()
            call.chunk(stream)
            call.end_chunks()
        else:
            call.json(whole)

    with RawUpstream(script) as upstream, weir(tmp_path, upstream.url, chat_policy()) as proxy:
        answer = proxy.client().request("POST", PATH, CHAT_STREAM if is_stream else CHAT)
    assert (answer.status, answer.body) == (200, stream if is_stream else whole)


# B47
@pytest.mark.parametrize(
    "policy", ["steps: []", CAP, *[line for line in EVERYTHING if line.startswith("steps")]]
)
@pytest.mark.parametrize("is_chunked", [False, True])
@pytest.mark.parametrize("cap", ["9", "1000000"])
def test_a_body_that_was_read_has_exactly_one_length_and_it_is_right(
    tmp_path: Path, policy: str, is_chunked: bool, cap: str
) -> None:
    body = f'{{"model":"m","messages":[],"max_tokens":{cap}}}'.encode()
    with RawUpstream(answer_ok) as upstream, weir(tmp_path, upstream.url, chat_policy(policy)) as proxy:
        client = proxy.client()
        if is_chunked:
            chunks = b"%x\r\n%b\r\n%x\r\n%b\r\n0\r\n\r\n" % (5, body[:5], len(body) - 5, body[5:])
            answer = client.request("POST", PATH, chunks, [("Transfer-Encoding", "chunked")])
        else:
            answer = client.request("POST", PATH, body)
        assert answer.status == 200
        call = upstream.calls[0]
    lengths = re.findall(rb"(?im)^content-length: (\d+)\r?$", call.head)
    assert lengths == [b"%d" % len(call.body)]
    assert call.header("transfer-encoding") is None
    assert json.loads(call.body)["max_tokens"] == (50 if policy == CAP and cap != "9" else int(cap))


# B47
@pytest.mark.parametrize(
    ("lines", "body"),
    [
        ([("Content-Length", "0")], None),
        ([], None),
        ([("Content-Length", "2")], b"{}"),
    ],
)
@pytest.mark.parametrize("policies", [None, chat_policy(CAP)])
def test_the_length_of_an_empty_body_is_said_as_the_caller_said_it(
    tmp_path: Path, lines: list[tuple[str, str]], body: bytes | None, policies: str | None
) -> None:
    with RawUpstream(answer_ok) as upstream, weir(tmp_path, upstream.url, policies) as proxy:
        client = proxy.client()
        head = "".join(f"{name}: {value}\r\n" for name, value in lines)
        client.send(f"POST {PATH} HTTP/1.1\r\nHost: weir.test\r\n{head}\r\n".encode() + (body or b""))
        assert client.read_answer().status == 200
        call = upstream.calls[0]
    assert [(name, value) for name, value in call.headers if name.lower() != b"host"] == [
        (name.encode(), value.encode()) for name, value in lines
    ]
