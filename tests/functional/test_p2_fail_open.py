"""P2: when a part of Weir fails, the request goes on as if it were not there, and log and counter say so.

Only `on_error: reject` refuses. Steps, the tokenizer, matching, classifying, policies on reload, the access
log and the shipped vocabularies fail here, each in the ways that they can.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import pytest

from proxy.app import load_policies
from proxy.core.document import Document
from proxy.policy.model import BoundStep, Match, OnError, PolicySet, Route, UrgencyPolicy, UsageMode
from proxy.settings import Settings
from proxy.steps.step import Step, StepContext
from proxy.tokens.counter import TokenCounter
from proxy.tokens.fixed import FixedCounter
from proxy.tokens.port import Count, Counter, EncodingName
from tests.support.chat import ANSWER, CHAT, CHAT_STREAM, DONE, PATH, chat_policy, delta, finish
from tests.support.raw_client import RawClient
from tests.support.raw_upstream import Call, RawUpstream
from tests.support.weir import RunningWeir, weir
from tests.support.weir_process import ROOT, weir_process

STREAM = delta("hel") + delta("lo") + finish() + DONE


def answer(call: Call) -> None:
    if b'"stream":true' in call.body:
        call.stream_head()
        call.chunk(STREAM)
        call.end_chunks()
    else:
        call.json(ANSWER)


@pytest.fixture
def upstream() -> Iterator[RawUpstream]:
    with RawUpstream(answer) as server:
        yield server


# --- steps --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Nothing:
    """A configuration without options."""


class PanicException(BaseException):
    """What a panic in a compiled library arrives as: no Exception, and of a class that nobody can import."""


def raise_error(document: Document, context: StepContext) -> object:
    raise KeyError(document.raw)


def panic(document: Document, context: StepContext) -> object:
    raise PanicException("index out of bounds")


def recurse(document: Document, context: StepContext) -> object:
    return recurse(document, context)


def return_nothing(document: Document, context: StepContext) -> object:
    return None


def out_of_memory(document: Document, context: StepContext) -> object:
    raise MemoryError


FAILURES: dict[str, tuple[Callable[[Document, StepContext], object], str]] = {
    "raises": (raise_error, "KeyError"),
    "panics": (panic, "PanicException"),
    "recurses": (recurse, "RecursionError"),
    "returns nothing": (return_nothing, "AttributeError"),
    "out of memory": (out_of_memory, "MemoryError"),
}


def with_failing_step(
    upstream: RawUpstream, fail: Callable[[Document, StepContext], object], on_error: OnError, counts: bool
) -> PolicySet:
    """Return a policy whose only step fails; with `counts` long bodies are decided in a thread."""

    def apply(document: Document, config: object, context: StepContext) -> Any:
        return fail(document, context)

    loaded = load_policies(Settings(upstream_url=upstream.url), {})
    failing = BoundStep(Step("failing", _Nothing, apply, counts_tokens=counts), _Nothing())
    return replace(loaded, routes=(_route(failing, on_error),))


def _route(failing: BoundStep, on_error: OnError) -> Route:
    return Route("failing", Match(path=(PATH,)), (failing,), on_error=on_error, usage=UsageMode.OFF)


@pytest.mark.parametrize("is_long", [False, True], ids=["short", "long"])
@pytest.mark.parametrize("kind", FAILURES)
def test_a_request_whose_step_fails_goes_on_unchanged(
    tmp_path: Path, upstream: RawUpstream, kind: str, is_long: bool
) -> None:
    fail, name = FAILURES[kind]
    policies = with_failing_step(upstream, fail, OnError.PASS, counts=True)
    padding = b" " * (50_000 if is_long else 0)
    with weir(tmp_path, upstream.url, policies) as proxy:
        client = proxy.client()
        unary = client.request("POST", PATH, CHAT + padding)
        streamed = client.request("POST", PATH, CHAT_STREAM + padding)
        records = proxy.log(2)
        assert proxy.metric("weir_steps_total", step="failing", status="failed") == 2
    assert (unary.status, unary.body) == (200, ANSWER)
    assert (streamed.status, streamed.body) == (200, STREAM)
    assert [call.body for call in upstream.calls] == [CHAT + padding, CHAT_STREAM + padding]
    for got, record in zip((unary, streamed), records, strict=True):
        assert got.header("x-weir-steps") == f'failing;failed;reason="{name}"'
        assert record["steps"] == [f"failing;failed ({name})"]
        assert record["error"] is None, "the exchange itself went well"


@pytest.mark.parametrize("is_long", [False, True], ids=["short", "long"])
@pytest.mark.parametrize("kind", FAILURES)
def test_on_error_reject_refuses_such_a_request(
    tmp_path: Path, upstream: RawUpstream, kind: str, is_long: bool
) -> None:
    fail, name = FAILURES[kind]
    policies = with_failing_step(upstream, fail, OnError.REJECT, counts=True)
    with weir(tmp_path, upstream.url, policies) as proxy:
        refusal = proxy.client().request("POST", PATH, CHAT + b" " * (50_000 if is_long else 0))
        (record,) = proxy.log(1)
        assert proxy.metric("weir_steps_total", step="failing", status="failed") == 1
        assert proxy.metric("weir_errors_total", code="rejected_by_policy") == 1
    assert refusal.status == 400
    error = json.loads(refusal.body)["error"]
    assert error["code"] == "rejected_by_policy"
    assert "failing" in error["message"]
    assert record["steps"] == [f"failing;failed ({name})"]
    assert (record["route"], record["error"]) == ("failing", "rejected_by_policy")
    assert upstream.calls == []


def test_the_other_steps_still_do_their_work(tmp_path: Path, upstream: RawUpstream) -> None:
    capped = chat_policy("steps: [{cap_output: {default: 9}}, {add_stop: [END]}]")
    file = tmp_path / "capped.yaml"
    file.write_text(capped)
    loaded = load_policies(Settings(policies=(str(file),), upstream_url=upstream.url), {})
    (route,) = loaded.routes
    failing = with_failing_step(upstream, panic, OnError.PASS, counts=False).routes[0].steps
    steps = (route.steps[0], *failing, route.steps[1])
    with weir(tmp_path, upstream.url, replace(loaded, routes=(replace(route, steps=steps),))) as proxy:
        assert proxy.client().request("POST", PATH, CHAT).status == 200
        (record,) = proxy.log(1)
    assert upstream.calls[0].body == CHAT[:-1] + b',"max_tokens":9,"stop":["END"]}'
    assert [step.split(";")[0] for step in record["steps"]] == ["cap_output", "failing", "add_stop"]


# --- the tokenizer ------------------------------------------------------------------------------------------


class FailingEncoder:
    """A vocabulary whose tokenizer fails on every text."""

    def __init__(self, problem: BaseException) -> None:
        self._problem = problem

    def encode_ordinary(self, text: str) -> list[int]:
        raise self._problem


class FailingCounter(FixedCounter):
    """A counter that breaks its own promise not to raise."""

    def count_message(self, raw: bytes, model: str) -> Count:
        raise PanicException("no rust today")

    def count_text(self, text: str, model: str) -> Count:
        raise PanicException("no rust today")

    def uncached_bytes(self, raws: Iterable[bytes], model: str) -> int:
        raise PanicException("no rust today")


def failing_tokenizer(kind: str) -> Counter:
    problem: BaseException = ValueError("bad text") if kind == "fails" else PanicException("stack overflow")
    return TokenCounter({name: FailingEncoder(problem) for name in EncodingName})


LONG_CHAT = json.dumps(
    {"model": "gpt-4o", "messages": [{"role": "user", "content": "word " * 900} for _ in range(9)]}
).encode()

COUNTING = {
    "step": chat_policy("steps: [{trim_history: {budget: 30000}}]"),
    "match": "version: 1\nroutes:\n"
    f"  - {{name: small, match: {{path: {PATH}, tokens: {{max: 3}}}}}}\n"
    f"  - {{name: chat, match: {{path: {PATH}, tokens: {{min: 4}}}}}}\n",
    "urgency": chat_policy(
        "urgency: {default: deferrable, rules: [{match: {tokens: {max: 3}}, urgency: soon}]}"
    ),
}


@pytest.mark.parametrize("kind", ["fails", "panics", "is missing"])
@pytest.mark.parametrize("place", COUNTING)
def test_a_tokenizer_that_fails_is_replaced_by_an_estimate(
    tmp_path: Path, upstream: RawUpstream, place: str, kind: str
) -> None:
    counter = TokenCounter({}) if kind == "is missing" else failing_tokenizer(kind)
    with weir(tmp_path, upstream.url, COUNTING[place], counter=counter) as proxy:
        for body in (CHAT, LONG_CHAT):
            assert proxy.client().request("POST", PATH, body).body == ANSWER
        records = proxy.log(2)
        assert proxy.metric("weir_token_count_fallbacks_total") > 0
        assert proxy.admin("/readyz")[0] == 200
    assert [call.body for call in upstream.calls] == [CHAT, LONG_CHAT]
    assert [record["route"] for record in records] == ["chat", "chat"]


@pytest.mark.parametrize("place", COUNTING)
@pytest.mark.parametrize("body", [CHAT, LONG_CHAT, CHAT_STREAM], ids=["short", "long", "stream"])
def test_a_counter_that_breaks_its_promise_fails_no_request(
    tmp_path: Path, upstream: RawUpstream, place: str, body: bytes
) -> None:
    with weir(tmp_path, upstream.url, COUNTING[place], counter=FailingCounter()) as proxy:
        got = proxy.client().request("POST", PATH, body)
        (record,) = proxy.log(1)
        failed = proxy.metric("weir_steps_total", status="failed")
    assert got.status == 200
    assert got.body == (STREAM if body is CHAT_STREAM else ANSWER)
    assert record["error"] is None
    is_counted = place != "step" or body is LONG_CHAT
    if body is CHAT_STREAM and place == "urgency":
        is_counted = False  # a stream's urgency is known without the route's rules
    named = [step for step in record["steps"] if "failed (PanicException)" in step]
    assert len(named) == failed == is_counted
    if named and place != "step":
        assert named == ["count_tokens;failed (PanicException)"]
        assert got.header("x-weir-steps") == 'count_tokens;failed;reason="PanicException"'


@pytest.mark.parametrize("place", ["match", "urgency"])
def test_a_route_that_rejects_refuses_when_the_counter_fails(
    tmp_path: Path, upstream: RawUpstream, place: str
) -> None:
    policies = COUNTING[place] + "defaults: {on_error: reject}\n"
    with weir(tmp_path, upstream.url, policies, counter=FailingCounter()) as proxy:
        refusal = proxy.client().request("POST", PATH, CHAT)
        (record,) = proxy.log(1)
    assert refusal.status == 400
    assert json.loads(refusal.body)["error"]["code"] == "rejected_by_policy"
    assert record["steps"] == ["count_tokens;failed (PanicException)"]
    assert upstream.calls == []


def test_what_no_route_takes_passes_even_if_that_could_not_be_counted(
    tmp_path: Path, upstream: RawUpstream
) -> None:
    policies = f"version: 1\nroutes: [{{name: huge, match: {{path: {PATH}, tokens: {{min: 9999}}}}}}]\n"
    with weir(tmp_path, upstream.url, policies, counter=FailingCounter()) as proxy:
        assert proxy.client().request("POST", PATH, CHAT).body == ANSWER
        (record,) = proxy.log(1)
    assert upstream.calls[0].body == CHAT
    assert (record["route"], record["steps"]) == (None, ["count_tokens;failed (PanicException)"])


# --- classifying --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("on_error", [OnError.PASS, OnError.REJECT])
def test_a_classifier_that_fails_leaves_the_request_interactive(
    tmp_path: Path, upstream: RawUpstream, on_error: OnError
) -> None:
    loaded = load_policies(Settings(upstream_url=upstream.url), {})
    # No validated set has such an urgency: classifying raises.
    urgency = UrgencyPolicy(default=cast(Any, "whenever"))
    broken = Route("broken", Match(path=(PATH,)), urgency=urgency, on_error=on_error)
    with weir(tmp_path, upstream.url, replace(loaded, routes=(broken,))) as proxy:
        got = proxy.client().request("POST", PATH, CHAT)
        (record,) = proxy.log(1)
        assert proxy.metric("weir_steps_total", step="classify", status="failed") == 1
    assert record["steps"] == ["classify;failed (KeyError)"]
    if on_error is OnError.REJECT:
        assert (got.status, upstream.calls) == (400, [])
        return
    assert got.body == ANSWER
    assert upstream.calls[0].body == CHAT
    assert got.header("x-weir-steps") == 'classify;failed;reason="KeyError"'
    assert got.header("x-weir-urgency") == 'interactive; reason="classifying failed"'
    assert (record["urgency"], record["urgency_reason"]) == ("interactive", "classifying failed")
    assert (record["lane"], record["lane_reason"]) == ("stream", "classifying failed")


# --- policies -----------------------------------------------------------------------------------------------

BROKEN_POLICIES = {
    "no YAML": "version: 1\nroutes: [",
    "unknown key": chat_policy("stepz: []"),
    "empty": "",
    "binary": "\0\0\0",
    "missing secret": chat_policy(
        "upstream: up", base_url="http://127.0.0.1:1/v1", upstream="api_key: '${NO}'"
    ),
    "unusable certificate": chat_policy(
        base_url="https://127.0.0.1:1/v1", upstream="tls: {ca: /nonexistent/ca.pem}"
    ),
}


def wait_until(holds: Callable[[], bool], seconds: float = 5.0) -> None:
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.mark.parametrize("kind", BROKEN_POLICIES)
def test_a_policy_that_breaks_on_reload_leaves_the_old_one_in_force(
    tmp_path: Path, upstream: RawUpstream, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "policy.yaml"
    file.write_text(chat_policy("steps: [{cap_output: {default: 9}}]"))
    with weir(tmp_path, upstream.url, file) as proxy:
        client = proxy.client()
        before = client.request("POST", PATH, CHAT)
        file.write_text(BROKEN_POLICIES[kind])
        proxy.call(proxy.app.reload)
        wait_until(lambda: proxy.metric("weir_policy_rejected") == 1)
        after = client.request("POST", PATH, CHAT)
        assert proxy.metric("weir_policy_reloads_total", result="rejected") >= 1
        assert proxy.metric("weir_policy_info", version=before.header("x-weir-policy") or "") == 1
        assert proxy.admin("/readyz")[0] == 200
        file.write_text(chat_policy("steps: [{cap_output: {default: 7}}]"))
        proxy.call(proxy.app.reload)
        wait_until(lambda: proxy.metric("weir_policy_rejected") == 0)
        assert client.request("POST", PATH, CHAT).header("x-weir-policy") != before.header("x-weir-policy")
    assert after.header("x-weir-policy") == before.header("x-weir-policy")
    caps = [json.loads(call.body)["max_tokens"] for call in upstream.calls]
    assert caps == [9, 9, 7]
    problems = [record for record in caplog.records if record.levelname == "ERROR"]
    assert problems, "nothing was logged"
    assert all("polic" in record.getMessage() for record in problems)


# --- the access log -----------------------------------------------------------------------------------------


def ask_many(proxy: RunningWeir, count: int = 30) -> float:
    """Send requests; return how long the slowest one took."""
    slowest_seconds = 0.0
    client = proxy.client()
    for number in range(count):
        begin = time.monotonic()
        assert client.request("POST", PATH, CHAT_STREAM if number % 2 else CHAT).status == 200
        slowest_seconds = max(slowest_seconds, time.monotonic() - begin)
    return slowest_seconds


def test_a_full_disk_under_the_log_delays_nobody(tmp_path: Path, upstream: RawUpstream) -> None:
    with weir(tmp_path, upstream.url, chat_policy(), access_log="/dev/full") as proxy:
        assert ask_many(proxy) < 2
        wait_until(lambda: proxy.metric("weir_access_log_dropped_total") == 30)
        assert proxy.admin("/readyz")[0] == 200


@contextmanager
def serving_into(stdout: int, upstream: RawUpstream) -> Iterator[subprocess.Popen[bytes]]:
    """Serve with the access log on standard output, which is `stdout`."""
    command = [sys.executable, "-m", "proxy.cli.main", "serve", "--listen", "127.0.0.1:0"]
    command += ["--admin", "127.0.0.1:0", "--drain-timeout", "1s"]
    environment = os.environ | {"WEIR_UPSTREAM": upstream.url}
    process = subprocess.Popen(
        command, cwd=ROOT, env=environment, stdout=stdout, stderr=subprocess.PIPE, pipesize=-1
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.wait(10)
        assert process.stderr is not None
        process.stderr.close()


def announced(reader: int) -> dict[str, tuple[str, int]]:
    """Read where it listens; what it says afterwards stays unread."""
    text = b""
    while b"listening on" not in text or not text.endswith(b"\n"):
        data = os.read(reader, 4096)
        assert data, "Weir ended instead of serving"
        text += data
    found = {}
    for line in text.decode().splitlines():
        what, _, where = line.partition(" on http://")
        host, _, port = where.rpartition(":")
        found[what.removeprefix("weir: ")] = (host, int(port))
    return found


def dropped_lines(admin_address: tuple[str, int]) -> float:
    with RawClient(admin_address) as admin:
        page = admin.request("GET", "/metrics").body.decode()
    return float(page.split("\nweir_access_log_dropped_total ")[1].split()[0])


@pytest.mark.parametrize("kind", ["nobody reads it", "its reader is gone"])
def test_standard_output_that_fails_delays_nobody_and_the_process_ends_in_order(
    upstream: RawUpstream, kind: str
) -> None:
    reader, writer = os.pipe()
    with serving_into(writer, upstream) as process:
        os.close(writer)
        addresses = announced(reader)
        if kind == "its reader is gone":
            os.close(reader)
        long_path = f"/v1/{'x' * 1500}"
        with RawClient(addresses["listening"]) as client:
            for _ in range(150):
                begin = time.monotonic()
                assert client.request("GET", long_path).status == 200
                assert time.monotonic() - begin < 2
        if kind == "its reader is gone":
            wait_until(lambda: dropped_lines(addresses["admin"]) == 150)
        else:
            assert dropped_lines(addresses["admin"]) == 0
        process.send_signal(signal.SIGTERM)
        assert process.wait(8) == 0
        assert process.stderr is not None
        assert b"Traceback" not in process.stderr.read()
    if kind == "nobody reads it":
        os.close(reader)


# --- vocabularies -------------------------------------------------------------------------------------------


def test_without_its_vocabularies_weir_starts_says_so_and_serves(
    tmp_path: Path, upstream: RawUpstream
) -> None:
    bare = tmp_path / "bare"
    shutil.copytree(ROOT / "proxy", bare / "proxy", ignore=shutil.ignore_patterns("data", "__pycache__"))
    environment = {"PYTHONPATH": str(bare), "PYTHONSAFEPATH": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    policies = COUNTING["step"]
    with weir_process(tmp_path, upstream.url, policies=policies, environment=environment) as process:
        assert "vocabulary o200k_base cannot be read" in process.output
        assert process.client().request("POST", PATH, LONG_CHAT).body == ANSWER
        page = process.admin("/metrics").body.decode()
    assert upstream.calls[0].body == LONG_CHAT
    assert float(page.split("\nweir_token_count_fallbacks_total ")[1].split()[0]) > 0
