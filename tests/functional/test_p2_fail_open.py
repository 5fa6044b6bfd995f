"""P2: when a part of Weir fails, the request goes on as if it were not there, and log and counter say so.

Only `on_error: reject` refuses. Steps, the tokenizer, matching and classifying fail here, each in the ways
that they can; test_p2_files_and_sinks.py goes on with what Weir reads and writes.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
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
from tests.support.raw_upstream import Call, RawUpstream
from tests.support.weir import weir

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
