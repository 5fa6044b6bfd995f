"""Bodies made to be costly, or to be read in two ways: each with its whole kind."""

from __future__ import annotations

import gzip
import json
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from proxy.edge.decision_threads import MAX_WAITING, THREADS
from proxy.tokens.fixed import FixedCounter
from proxy.tokens.port import Count
from tests.support.chat import ANSWER, PATH, chat_policy
from tests.support.raw_client import RawAnswer
from tests.support.raw_upstream import Call, RawUpstream
from tests.support.served import served
from tests.support.weir import RunningWeir, weir

CAP = "steps: [{cap_output: {max: 10}}]"
DEFAULT = "steps: [{cap_output: {default: 10}}]"
TRIM = "steps: [{trim_history: {budget: 10}}]"
TRIM_OR_REJECT = "steps: [{trim_history: {budget: 10, on_overflow: reject}}]"
HELD = b'{"model":"m","messages":[%b{"role":"user","content":"hi"}]}' % (
    b'{"role":"user","content":"hello"},' * 600
)
OVERLOADED = "too many bodies wait to be read"

COSTLY = {
    "equal keys": b"{" + b'"a":1,' * 2_000_000 + b'"max_tokens":99}',
    "distinct keys": b"{" + b",".join(b'"%d":1' % n for n in range(500_000)) + b',"max_tokens":99}',
    "stop sequences": b'{"max_tokens":99,"stop":[' + b'"",' * 1_000_000 + b'"x"]}',
    "a lone surrogate and many keys": b'{"max_tokens":99,"m":"\\ud800",' + b'"a":1,' * 500_000 + b'"b":1}',
    "lists": b'{"max_tokens":99,"x":[' + b"[]," * 1_000_000 + b"1]}",
}


def answer(call: Call) -> None:
    call.json(ANSWER)


def code(told: RawAnswer) -> str:
    return str(json.loads(told.body)["error"]["code"])


@pytest.mark.parametrize("is_compressed", [False, True], ids=["plain", "gzip"])
@pytest.mark.parametrize("name", COSTLY)
def test_a_body_of_very_many_parts_is_treated_as_one_too_large(
    tmp_path: Path, name: str, is_compressed: bool
) -> None:
    body = gzip.compress(COSTLY[name], 1) if is_compressed else COSTLY[name]
    headers = [("Content-Encoding", "gzip")] if is_compressed else []
    with served(tmp_path, answer, chat_policy(CAP)) as (proxy, upstream):
        refused = proxy.client().request("POST", PATH, body, headers)
        assert (refused.status, code(refused)) == (413, "body_too_large")
        assert upstream.calls == []
    with served(tmp_path, answer, chat_policy(DEFAULT)) as (proxy, upstream):
        assert proxy.client().request("POST", PATH, body, headers).status == 200
    assert upstream.calls[0].body == body


@pytest.mark.parametrize("name", [*COSTLY, "text"])
def test_nobody_waits_for_a_costly_body_of_another(tmp_path: Path, name: str) -> None:
    body = COSTLY.get(name, b'{"m":"' + b"abc, " * 6_000_000 + b'"}')
    ended = threading.Event()
    with served(tmp_path, answer, chat_policy(DEFAULT)) as (proxy, _):
        hostile = proxy.client(30.0)

        def attack() -> None:
            for _ in range(2):
                hostile.request("POST", PATH, body)
            ended.set()

        thread = threading.Thread(target=attack)
        thread.start()
        client = proxy.client()
        waits: list[float] = []
        while not ended.is_set():
            started = time.monotonic()
            assert client.request("POST", PATH, b'{"model":"m","messages":[]}').status == 200
            waits.append(time.monotonic() - started)
        thread.join()
    # Held up for seconds before; what is left is noise of a busy machine.
    assert max(waits, default=0.0) < 1.0


@pytest.mark.parametrize(
    "body",
    [
        b'{"model":"secret-1",' + b'"a":1,' * 5_000 + b'"b":1}',
        b'{"model":"secret-1","x":' + b"[" * 600 + b"]" * 600 + b"}",
    ],
    ids=["parts", "depth"],
)
def test_what_is_not_read_does_not_choose_its_upstream(tmp_path: Path, body: bytes) -> None:
    with RawUpstream(answer) as public, RawUpstream(answer) as house:
        policy = f"""
version: 1
upstreams: {{public: {{base_url: "{public.url}"}}, house: {{base_url: "{house.url}"}}}}
defaults: {{upstream: public}}
routes:
  - {{name: confidential, match: {{path: {PATH}, model: "secret-*"}}, upstream: house}}
"""
        with weir(tmp_path, None, policy) as proxy:
            refused = proxy.client().request("POST", PATH, body)
    assert (refused.status, code(refused)) == (413, "body_too_large")
    assert (public.calls, house.calls) == ([], [])


class Gate(FixedCounter):
    """Counts nothing until it is opened, and how often it was asked."""

    def __init__(self) -> None:
        super().__init__()
        self.opened = threading.Event()
        self.asked = 0

    def count_message(self, raw: bytes, model: str) -> Count:
        """Count once the gate is open."""
        self.asked += 1
        assert self.opened.wait(20.0)
        return super().count_message(raw, model)


def held(tmp_path: Path, gate: Gate, policy: str, check: Callable[[RunningWeir, RawUpstream], Any]) -> None:
    with RawUpstream(answer) as upstream, weir(tmp_path, upstream.url, policy, counter=gate) as proxy:
        try:
            check(proxy, upstream)
        finally:
            gate.opened.set()


def send_held(proxy: RunningWeir, count: int) -> list[Any]:
    """Send requests whose decisions wait at the gate; return when they all have been read."""
    clients = [proxy.client(30.0) for _ in range(count)]
    head = b"POST %b HTTP/1.1\r\nHost: weir.test\r\nContent-Length: %d\r\n\r\n" % (PATH.encode(), len(HELD))
    for client in clients:
        client.send(head + HELD)
    deadline = time.monotonic() + 10
    while proxy.app.service.decisions.waiting < min(count, MAX_WAITING):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    return clients


def test_nothing_is_counted_for_callers_that_have_left(tmp_path: Path) -> None:
    gate = Gate()

    def check(proxy: RunningWeir, upstream: RawUpstream) -> None:
        for client in send_held(proxy, 20):
            client.close()
        assert {record["error"] for record in proxy.log(20)} == {"client_closed"}
        gate.opened.set()
        assert proxy.client().request("POST", PATH, HELD).status == 200
        # Each thread was in the middle of one message; the last request has 601, counted once or twice.
        assert gate.asked <= THREADS + 2 * 601
        assert len(upstream.calls) == 1

    held(tmp_path, gate, chat_policy(TRIM), check)


def test_decisions_hold_up_neither_reloads_nor_short_requests(tmp_path: Path) -> None:
    gate = Gate()

    def check(proxy: RunningWeir, upstream: RawUpstream) -> None:
        send_held(proxy, 40)
        assert proxy.client().request("POST", "/v1/other", b"{}").status == 200
        file = next(tmp_path.glob("policy-*.yaml"))
        file.write_text(file.read_text() + "  - {name: more, match: {path: /v1/more}}\n")
        proxy.call(proxy.app.reload)
        deadline = time.monotonic() + 5
        while len(proxy.app.pipeline.policies.routes) == 1:
            assert time.monotonic() < deadline
            time.sleep(0.01)

    held(tmp_path, gate, chat_policy(TRIM), check)


@pytest.mark.parametrize(
    ("steps", "is_served"), [(TRIM, True), (TRIM_OR_REJECT, False)], ids=["passes", "enforces"]
)
def test_a_body_for_which_there_is_no_room_passes_unread_or_is_refused(
    tmp_path: Path, steps: str, is_served: bool
) -> None:
    gate = Gate()

    def check(proxy: RunningWeir, upstream: RawUpstream) -> None:
        send_held(proxy, MAX_WAITING)
        told = proxy.client().request("POST", PATH, HELD)
        (record,) = proxy.log(1)
        if is_served:
            assert told.status == 200
            assert upstream.calls[0].body == HELD
            assert record["steps"] == [f"trim_history;skipped ({OVERLOADED})"]
        else:
            assert (told.status, code(told), told.header("retry-after")) == (503, "overloaded", "1")
            assert (upstream.calls, record["error"]) == ([], "overloaded")
        assert proxy.client().request("POST", PATH, HELD, [("x-weir-explain", "dry-run")]).status == 503

    held(tmp_path, gate, chat_policy(steps, "allow_caller: [x-weir-explain]"), check)


@pytest.mark.parametrize("may_ask", [True, False])
def test_a_dry_run_of_a_body_too_large_sends_nothing(tmp_path: Path, may_ask: bool) -> None:
    allowed = "allow_caller: [x-weir-explain]" if may_ask else "allow_caller: []"
    body = b'{"model":"m","messages":["%b"]}' % (b"x" * 5_000)
    with served(tmp_path, answer, chat_policy(DEFAULT, "max_body: 1KiB", allowed)) as (proxy, upstream):
        told = proxy.client().request("POST", PATH, body, [("x-weir-explain", "dry-run")])
    assert (told.status, len(upstream.calls)) == ((413, 0) if may_ask else (200, 1))


@pytest.mark.parametrize("key", ["MAX_TOKENS", "maxTokens", "max_token\u017f", "\uff4dax_tokens", "Model"])
def test_a_key_that_a_lenient_server_reads_as_a_limited_one_is_refused(tmp_path: Path, key: str) -> None:
    body = json.dumps({"model": "m", "messages": [], key: 999}, ensure_ascii=False).encode()
    with served(tmp_path, answer, chat_policy(CAP)) as (proxy, upstream):
        refused = proxy.client().request("POST", PATH, body)
        error = json.loads(refused.body)["error"]
        assert (refused.status, error["code"]) == (400, "rejected_by_policy")
        assert error["param"] == key.encode("ascii", "backslashreplace").decode()
        # Nor is it let through once the route knows what it does to such requests.
        assert proxy.client().request("POST", PATH, b'{"model":"m","messages":[]}').status == 200
        assert proxy.client().request("POST", PATH, body).status == 400
    assert len(upstream.calls) == 1
    with served(tmp_path, answer, chat_policy(DEFAULT)) as (proxy, upstream):
        assert proxy.client().request("POST", PATH, body).status == 200
    assert upstream.calls[0].body == body[:-1] + b',"max_tokens":10}'


def test_a_bound_holds_for_nested_duplicates(tmp_path: Path) -> None:
    policy = chat_policy("steps: [{set_params: {a.b.c: {max: 3}}}]")
    with served(tmp_path, answer, policy) as (proxy, upstream):
        assert proxy.client().request("POST", PATH, b'{"a":{"b":{"c":9},"b":5}}').status == 200
    assert upstream.calls[0].body == b'{"a":{"b":{"c":3},"b":5}}'


@pytest.mark.parametrize(
    "number", [str(2**64), "-" + str(2**70), "9" * 400, "9" * 4_000, "9" * 9_000, "1e999"]
)
def test_numbers_of_any_size_are_explained_and_told_in_few_characters(tmp_path: Path, number: str) -> None:
    body = b'{"model":"m","max_tokens":%b,"seed":%b}' % (number.encode(), number.encode())
    policy = chat_policy(CAP, "allow_caller: [x-weir-explain]")
    with served(tmp_path, answer, policy) as (proxy, upstream):
        told = proxy.client().request("POST", PATH, body)
        dry = proxy.client().request("POST", PATH, body, [("x-weir-explain", "dry-run")])
        record = proxy.log(2)[0]
    assert (told.status, dry.status) == (200, 200)
    assert len(told.header("x-weir-steps") or "") < 200
    assert len(record["steps"][0]) < 200
    assert b'"seed":' + number.encode() in dry.body
    assert b'"seed":' + number.encode() in upstream.calls[0].body
    assert json.loads(dry.body.replace(number.encode(), b"1"))["steps"][0]["name"] == "cap_output"
