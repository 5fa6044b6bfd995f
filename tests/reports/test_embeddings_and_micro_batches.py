"""Embeddings and micro-batches (reports B90 to B94), through the whole proxy.

Choices: `encoding_format` keeps requests apart rather than being converted, so that floats keep their
characters; a refused call is sent singly once, and a request that is too large by itself passes as it came.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.support.lane_kinds import answer, vector
from tests.support.raw_client import RawAnswer
from tests.support.raw_upstream import Call, RawUpstream
from tests.support.served import served
from tests.support.weir import RunningWeir

PATH = "/v1/embeddings"
POLICY = """
version: 1
routes:
  - name: pool
    match: {path: /v1/embeddings}
    urgency: {default: soon}
    coalesce: {max_wait: 5s%s}
"""


def body(inputs: Any, **more: Any) -> bytes:
    return json.dumps({"model": "m", "input": inputs} | more).encode()


class Burst:
    """An upstream that keeps its first answer until all others wait in the pool, then answers by `then`."""

    def __init__(self, then: Any) -> None:
        self._then = then
        self._opened = threading.Event()

    def __call__(self, call: Call) -> None:
        if call.number == 0:
            assert self._opened.wait(5)
        self._then(call)

    def send(
        self, proxy: RunningWeir, upstream: RawUpstream, bodies: Sequence[bytes], headers: Sequence[Any] = ()
    ) -> list[RawAnswer]:
        """Send a first request, then these while it is in flight; return the answers to these."""
        first = proxy.client()
        first.send_request("POST", PATH, body("first"), headers)
        upstream.wait_for_calls(1)
        clients = [proxy.client() for _ in bodies]
        for client, each in zip(clients, bodies, strict=True):
            client.send_request("POST", PATH, each, headers)
        # Some may be alone in their windows and done already.
        while proxy.metric("weir_in_flight") + proxy.metric("weir_requests_total") < 1 + len(bodies):
            time.sleep(0.002)
        self._opened.set()
        assert first.read_answer("POST").status == 200
        return [client.read_answer("POST") for client in clients]


def serve(call: Call) -> None:
    call.json(json.dumps(answer(json.loads(call.body))).encode())


def inputs_of(upstream: RawUpstream) -> list[Any]:
    return [json.loads(call.body)["input"] for call in upstream.calls[1:]]


# B90
@pytest.mark.parametrize("encoding", [None, "float", "base64"])
def test_a_caller_alone_gets_the_form_that_it_asked_for_to_the_character(
    tmp_path: Path, encoding: str | None
) -> None:
    written: dict[Any, bytes] = {
        None: b"[1.0, -0.0, 1e-9]",
        "float": b"[1.0, -0.0, 1e-9]",
        "base64": b'"AACAPw=="',
    }
    raw = (
        b'{"object":"list", "data":[{"index":0,"embedding":%b}], "usage":{"prompt_tokens":1}}'
        % written[encoding]
    )
    with served(tmp_path, lambda call: call.json(raw), POLICY % "") as (proxy, upstream):
        asked = body("a") if encoding is None else body("a", encoding_format=encoding)
        got = proxy.client().request("POST", PATH, asked)
        assert got.body == raw
        assert upstream.calls[0].body == asked


# B90
def test_callers_who_ask_for_different_forms_are_never_in_one_call(tmp_path: Path) -> None:
    def script(call: Call) -> None:
        asked = json.loads(call.body)
        made = answer(asked)
        for each in made["data"]:
            each["embedding"] = "QQ==" if asked.get("encoding_format") == "base64" else "FLOATS"
        call.json(json.dumps(made).encode().replace(b'"FLOATS"', b"[1.0, -0.0, 2.50]"))

    different = [
        *(body(text, encoding_format="base64") for text in "ab"),
        *(body(text, encoding_format="float") for text in "cd"),
        *(body(text, dimensions=8) for text in "ef"),
        *(body(text, user="u") for text in "gh"),
        *(body(text, extra_field=[1]) for text in "ij"),
        *(body(text) for text in "kl"),
    ]
    burst = Burst(script)
    with served(tmp_path, burst, POLICY % "") as (proxy, upstream):
        answers = burst.send(proxy, upstream, different)
        for got, asked in zip(answers, different, strict=True):
            (element,) = json.loads(got.body)["data"]
            is_base64 = b"base64" in asked
            assert (element["embedding"] == "QQ==") is is_base64
            assert is_base64 or b"[1.0, -0.0, 2.50]" in got.body, "floats as the same characters"
        by_text = {json.loads(each)["input"]: json.loads(each) for each in different}
        for call in upstream.calls[1:]:
            form = json.loads(call.body)
            asked_for = form.pop("input")
            for text in asked_for if isinstance(asked_for, list) else [asked_for]:
                assert {**form, "input": text} == by_text[text]


# B91
def test_a_callers_several_inputs_have_each_index_once_in_the_order_of_its_inputs(tmp_path: Path) -> None:
    burst = Burst(serve)
    with served(tmp_path, burst, POLICY % ", max_items: 4") as (proxy, upstream):
        texts = [["a", "bb", "ccc"], ["dddd"], ["e", "ff"], ["ggg", "h"]]
        answers = burst.send(proxy, upstream, [body(each) for each in texts])
        for got, own in zip(answers, texts, strict=True):
            data = json.loads(got.body)["data"]
            assert [each["index"] for each in data] == list(range(len(own)))
            assert [each["embedding"] for each in data] == [vector(text) for text in own]
        assert sorted(map(len, inputs_of(upstream))) == [4, 4]


# B92
def test_answers_are_paired_by_index_and_not_by_position(tmp_path: Path) -> None:
    def script(call: Call) -> None:
        made = answer(json.loads(call.body))
        made["data"] = made["data"][2:] + made["data"][:2][::-1]
        call.json(json.dumps(made).encode())

    burst = Burst(script)
    with served(tmp_path, burst, POLICY % "") as (proxy, upstream):
        texts = ["a", "bb", "ccc", "dddd", "eeeee"]
        answers = burst.send(proxy, upstream, [body(text) for text in texts])
        assert [json.loads(got.body)["data"][0]["embedding"] for got in answers] == [vector(t) for t in texts]
        assert len(upstream.calls) == 2


# B93
@pytest.mark.parametrize(
    "status", [b"400 Bad Request", b"422 Unprocessable Entity", b"413 Payload Too Large"]
)
def test_one_bad_input_fails_nobody_else_and_does_not_come_back(tmp_path: Path, status: bytes) -> None:
    bad = "x" * 50

    def script(call: Call) -> None:
        asked = json.loads(call.body)["input"]
        texts = asked if isinstance(asked, list) else [asked]
        if bad in texts:
            where = f"input[{texts.index(bad)}]" if isinstance(asked, list) else "input"
            call.json(json.dumps({"error": {"message": f"'{where}' is too long"}}).encode(), status)
        else:
            serve(call)

    burst = Burst(script)
    with served(tmp_path, burst, POLICY % "") as (proxy, upstream):
        texts = ["a", "bb", "ccc", bad, "dddd", "eeeee", "ffffff", "ggggggg"]
        answers = burst.send(proxy, upstream, [body(text) for text in texts])
        assert [got.status for got in answers] == [200, 200, 200, int(status[:3]), 200, 200, 200, 200]
        assert json.loads(answers[3].body)["error"]["message"] == "'input' is too long"
        for got, text in zip(answers, texts, strict=True):
            if got.status == 200:
                made = json.loads(got.body)
                assert made["data"][0]["embedding"] == vector(text)
                assert made["usage"]["prompt_tokens"] == len(text), "billed for its own"
        assert len(upstream.calls) == 1 + 1 + len(texts), "the first, all together, each once"


# B93
def test_nobody_sees_another_callers_text_in_an_error(tmp_path: Path) -> None:
    def script(call: Call) -> None:
        call.json(
            json.dumps({"error": {"message": f"bad: {call.body.decode()}"}}).encode(), b"400 Bad Request"
        )

    burst = Burst(lambda call: script(call) if call.number else serve(call))
    with served(tmp_path, burst, POLICY % "") as (proxy, upstream):
        texts = ["alpha", "beta", "gamma"]
        answers = burst.send(proxy, upstream, [body(text) for text in texts])
        for got, text in zip(answers, texts, strict=True):
            assert got.status == 400
            assert [other for other in texts if other.encode() in got.body] == [text]


# B94
def test_no_call_has_more_inputs_than_the_limit_and_one_request_that_has_passes_unchanged(
    tmp_path: Path,
) -> None:
    burst = Burst(serve)
    with served(tmp_path, burst, POLICY % ", max_items: 4") as (proxy, upstream):
        six = body(list("abcdef"))
        bodies = [body(["a", "b"]), body(["c", "d"]), body(["e", "f"]), six]
        answers = burst.send(proxy, upstream, bodies)
        assert {got.status for got in answers} == {200}
        assert sorted(map(len, inputs_of(upstream))) == [2, 4, 6]
        assert six in [call.body for call in upstream.calls], "unchanged"
        assert [len(json.loads(got.body)["data"]) for got in answers] == [2, 2, 2, 6]


# B94
def test_a_limit_that_only_the_upstream_knows_is_learnt_from_its_refusal(tmp_path: Path) -> None:
    def script(call: Call) -> None:
        asked = json.loads(call.body)["input"]
        if isinstance(asked, list) and len(asked) > 3:
            text = f"batch size {len(asked)} > maximum allowed batch size 3"
            call.json(
                json.dumps({"error": text, "error_type": "Validation"}).encode(), b"422 Unprocessable Entity"
            )
        else:
            serve(call)

    first, second = Burst(script), Burst(script)
    turns = [first, second]

    def both(call: Call) -> None:
        turns[0](call)

    with served(tmp_path, both, POLICY % "") as (proxy, upstream):
        texts = [body(text * (n + 1)) for n, text in enumerate("abcdefgh")]
        assert {got.status for got in first.send(proxy, upstream, texts)} == {200}
        begun = len(upstream.calls)
        clients = [proxy.client() for _ in range(9)]
        for number, client in enumerate(clients):
            client.send_request("POST", PATH, body("z" * (number + 1)))
        for number, client in enumerate(clients):
            got = client.read_answer("POST")
            assert json.loads(got.body)["data"][0]["embedding"] == vector("z" * (number + 1))
        sizes = [len(json.loads(call.body)["input"]) for call in upstream.calls[begun:] if b"[" in call.body]
        assert max(sizes, default=0) <= 3


# Token ids: one list of numbers is one input (wire.md 2.1).
def test_a_list_of_token_ids_is_one_input_and_stays_apart_from_texts(tmp_path: Path) -> None:
    burst = Burst(serve)
    with served(tmp_path, burst, POLICY % "") as (proxy, upstream):
        answers = burst.send(proxy, upstream, [body([1, 2, 3]), body("a"), body([[4], [5, 6]]), body(["b"])])
        assert [len(json.loads(got.body)["data"]) for got in answers] == [1, 1, 2, 1]
        for asked in inputs_of(upstream):
            kinds = {type(each) for each in asked} if isinstance(asked, list) else {str}
            assert kinds in ({int}, {list}, {str}), asked
