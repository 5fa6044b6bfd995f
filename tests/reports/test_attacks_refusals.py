"""What one refusal teaches: no more than it says, and nothing is lost of the answer that follows it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.chat import ANSWER, CHAT_STREAM, DONE, PATH, chat_policy, delta, finish
from tests.support.raw_upstream import Call
from tests.support.served import served

IN_COMPANY = [
    "'max_tokens' is not supported when 'tools' is set.",
    "Unsupported parameter: 'max_tokens' is not supported with 'logprobs'.",
    "max_tokens is not supported with tools.",
    "max_tokens is not allowed together with tools",
    "Unsupported combination: max_tokens and tools",
    "'max_tokens' is not permitted if tools are given",
    "max_tokens and tools are mutually exclusive; max_tokens is not allowed",
    "max_tokens is not supported with response_format",
    "max_tokens is not supported without `stream`",
]
ALONE = [
    "'max_tokens' is not supported with this model. Use 'max_completion_tokens' instead.",
    "Unsupported parameter: 'max_tokens' is not supported with the o1 models.",
    "Unknown parameter: 'max_tokens'.",
    "max_tokens: Extra inputs are not permitted",
]


@pytest.mark.parametrize("message", IN_COMPANY + ALONE)
def test_what_is_refused_only_in_company_is_not_remembered(tmp_path: Path, message: str) -> None:
    def script(call: Call) -> None:
        asked = json.loads(call.body)
        if "max_tokens" in asked and "logprobs" in asked:
            error = {"error": {"message": message, "param": "max_tokens"}}
            call.json(json.dumps(error).encode(), b"400 Bad Request")
        else:
            call.json(ANSWER)

    policy = chat_policy("steps: [{cap_output: {default: 300}}]")
    with served(tmp_path, script, policy) as (proxy, upstream):
        client = proxy.client()
        for body in (b'{"model":"m","messages":[],"logprobs":true}', b'{"model":"m","messages":[]}'):
            assert client.request("POST", PATH, body).status == 200
    assert (b'"max_tokens"' in upstream.calls[-1].body) is (message in IN_COMPANY)


USAGE = b'data: {"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":2}}\n\n'
NULL = delta("x").replace(b"}]}", b'}],"usage":null}')


@pytest.mark.parametrize(
    "refusal",
    [
        {"message": "Unknown parameter: 'stream_options'", "param": "stream_options"},
        {"message": "I do not like this request", "param": None},
    ],
    ids=["named", "unnamed"],
)
def test_usage_that_was_not_asked_for_after_all_stays_in_the_stream(
    tmp_path: Path, refusal: dict[str, object]
) -> None:
    def script(call: Call) -> None:
        if b"stream_options" in call.body:
            call.json(json.dumps({"error": refusal}).encode(), b"400 Bad Request")
            return
        call.stream_head()
        call.chunk(delta("hello") + NULL + finish() + USAGE + DONE)
        call.end_chunks()

    with served(tmp_path, script, chat_policy()) as (proxy, _):
        bodies = [proxy.client().request("POST", PATH, CHAT_STREAM).body for _ in range(2)]
        records = proxy.log(2)
    assert bodies == [delta("hello") + NULL + finish() + USAGE + DONE] * 2
    assert [record["tokens_out"] for record in records] == [2, 2]
