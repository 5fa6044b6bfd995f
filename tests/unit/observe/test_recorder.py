"""An ended exchange becomes numbers and one line, each counted once, and callers choose no labels."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.core.clock import ManualClock
from proxy.core.decision import ClosedBy, Lane, LaneDecision, Pooled, StepReport, StepStatus, Strategy
from proxy.core.exchange import Exchange
from proxy.core.usage import Usage
from proxy.observe import catalogue as m
from proxy.observe.access_log import AccessLog
from proxy.observe.catalogue import Metric
from proxy.observe.metrics import Metrics
from proxy.observe.recorder import Recorder


def recorder() -> Recorder:
    return Recorder(Metrics(), AccessLog(None), ManualClock())


def exchange(**known: object) -> Exchange:
    made = Exchange("id", 100.0)
    for name, value in ({"ended_at": 101.0, "status": 200} | known).items():
        assert name in Exchange.__slots__
        object.__setattr__(made, name, value)
    return made


def series(to: Recorder, metric: Metric) -> dict[tuple[str, ...], list[float]]:
    """Return the cells of a metric that are not empty."""
    return {tuple(labels): cell for labels, cell in to.metrics.snapshot()[metric.name] if any(cell)}


def values(to: Recorder, metric: Metric) -> dict[tuple[str, ...], float]:
    return {labels: cell[0] for labels, cell in series(to, metric).items()}


def counts(to: Recorder, metric: Metric) -> dict[tuple[str, ...], float]:
    return {labels: sum(cell[:-1]) for labels, cell in series(to, metric).items()}


ends = st.fixed_dictionaries(
    {
        "route": st.sampled_from(["", "chat", "other route"]),
        "model": st.sampled_from(["", "known", "made up", "\ud800"]),
        "status": st.sampled_from([0, 101, 200, 400, 429, 502, 504]),
        "error": st.sampled_from(["", "client_closed", "upstream_closed"]),
        "retries": st.integers(0, 3),
        "is_stream": st.booleans(),
        "queue_seconds": st.sampled_from([0.0, 0.5]),
        "finish_reason": st.sampled_from(["", "stop", "length"]),
        "was_empty": st.booleans(),
        "usage": st.none() | st.builds(Usage, *[st.none() | st.integers(0, 99)] * 5),
        "lane": st.none() | st.just(LaneDecision(Lane.STREAM, "interactive")),
        "first_token_at": st.sampled_from([0.0, 100.5]),
        "sent_at": st.sampled_from([0.0, 100.1]),
        "upstream": st.just("up"),
    }
)


@given(st.lists(ends, max_size=30))
def test_each_exchange_is_counted_once_in_every_place(ended: list[dict[str, Any]]) -> None:
    to = recorder()
    to.models = frozenset({"known"})
    for _ in ended:
        to.begun()
    assert to.in_flight == len(ended)
    for each in ended:
        to.record(exchange(**each))
    assert to.in_flight == 0
    assert sum(values(to, m.REQUESTS).values()) == len(ended)
    assert sum(counts(to, m.TOTAL).values()) == len(ended)
    assert sum(counts(to, m.OVERHEAD).values()) == len(ended)
    assert sum(values(to, m.ERRORS).values()) == sum(bool(each["error"]) for each in ended)
    assert sum(values(to, m.RETRIES).values()) == sum(each["retries"] for each in ended)
    assert sum(counts(to, m.QUEUE).values()) == sum(bool(each["queue_seconds"]) for each in ended)
    assert sum(values(to, m.LANES).values()) == sum(bool(each["route"] and each["lane"]) for each in ended)
    has_ttft = [each["is_stream"] and each["first_token_at"] and each["sent_at"] for each in ended]
    assert sum(counts(to, m.TTFT).values()) == sum(map(bool, has_ttft))
    for kind in ("input", "output", "cached", "cache_write", "reasoning"):
        told = [getattr(each["usage"], f"{kind}_tokens") or 0 for each in ended if each["usage"] is not None]
        assert sum(v for labels, v in values(to, m.TOKENS).items() if labels[2] == kind) == sum(told)
    models = {labels[1] for labels in counts(to, m.TOTAL)}
    assert models <= {"", "known", "other"}


@pytest.mark.parametrize(
    ("status", "label"), [(200, "2xx"), (101, "1xx"), (429, "4xx"), (504, "5xx"), (0, "none")]
)
def test_statuses_are_counted_by_class(status: int, label: str) -> None:
    to = recorder()
    to.begun()
    to.record(exchange(status=status, route="chat"))
    assert values(to, m.REQUESTS) == {("chat", "", label): 1}


def test_a_request_that_could_not_be_read_is_counted_without_having_begun() -> None:
    to = recorder()
    to.refused(exchange(status=431, error="headers_too_large"))
    assert to.in_flight == 0
    assert values(to, m.REQUESTS) == {("", "", "4xx"): 1}
    assert values(to, m.ERRORS) == {("headers_too_large",): 1}


def test_steps_and_what_they_saved_are_counted() -> None:
    to = recorder()
    reports = (
        StepReport("trim_history", StepStatus.APPLIED, "", (("saved", 812),)),
        StepReport("cap_output", StepStatus.FAILED, "KeyError"),
    )
    for _ in range(2):
        to.begun()
        to.record(exchange(route="chat", steps=reports, tokens_before=1000, tokens_after=188))
    assert values(to, m.STEPS) == {("trim_history", "applied"): 2, ("cap_output", "failed"): 2}
    assert values(to, m.TOKENS_SAVED) == {("chat", "trim_history"): 1624}


def test_an_answer_that_its_cap_left_empty_is_counted_and_others_are_not() -> None:
    to = recorder()
    for reason, was_empty in (("length", True), ("length", False), ("stop", True)):
        to.begun()
        to.record(exchange(route="chat", finish_reason=reason, was_empty=was_empty, usage=Usage()))
    assert values(to, m.CAPPED_EMPTY) == {("chat",): 1}


@pytest.mark.parametrize(
    ("is_leader", "closed_by", "prefix"),
    [
        (True, ClosedBy.IDLE, "cold"),
        (False, ClosedBy.RETURNED, "warm"),
        (False, ClosedBy.IDLE, "warm"),
        (False, ClosedBy.MAX_WAIT, "expired"),
        (False, ClosedBy.SHUTDOWN, "expired"),
    ],
)
def test_what_a_burst_found_in_the_prompt_cache_is_counted(
    is_leader: bool, closed_by: ClosedBy, prefix: str
) -> None:
    to = recorder()
    pooled = Pooled(Strategy.WARM, 5, closed_by, is_leader)
    to.record(exchange(route="r", pooled=pooled, usage=Usage(input_tokens=100, cached_tokens=80)))
    assert values(to, m.WARM_TOKENS) == {("r", prefix, "input"): 100, ("r", prefix, "cached"): 80}
    assert values(to, m.CALLS_SAVED) == {}


def test_what_a_shared_call_used_is_counted_once() -> None:
    to = recorder()
    for is_leader in (False, True, False):
        pooled = Pooled(Strategy.SHARE, 3, ClosedBy.IDLE, is_leader)
        to.record(exchange(route="r", pooled=pooled, usage=Usage(input_tokens=9, output_tokens=2)))
    assert values(to, m.TOKENS) == {("r", "", "input"): 9, ("r", "", "output"): 2}
    assert values(to, m.CALLS_SAVED) == {("r", "share"): 2}


def test_time_per_token_is_not_learnt_from_a_stream_that_broke() -> None:
    to = recorder()
    for error in ("", "upstream_closed"):
        to.begun()
        to.record(
            exchange(
                is_stream=True,
                sent_at=100.1,
                first_token_at=100.5,
                usage=Usage(output_tokens=6),
                error=error,
            )
        )
    assert sum(counts(to, m.TPOT).values()) == 1


def test_figures_that_callers_choose_mint_no_reasons() -> None:
    to = recorder()
    for number in range(50):
        to.begun()
        reason = f"caller waits only {number / 7:g} s (deferrable)"
        to.record(exchange(route="chat", lane=LaneDecision(Lane.STREAM, reason)))
    ((labels, count),) = values(to, m.LANES).items()
    assert labels == ("stream", "caller waits only # s (deferrable)")
    assert count == 50


def test_models_that_callers_make_up_take_no_memory() -> None:
    to = recorder()
    for number in range(5_000):
        to.begun()
        to.record(exchange(model=f"made up {number}", route="chat"))
    assert len(to.metrics.snapshot()[m.TOTAL.name]) == 1


@pytest.mark.parametrize("as_text", [True, False])
def test_every_exchange_is_one_line_in_the_log(tmp_path: Path, as_text: bool) -> None:
    path = tmp_path / "log"
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT)
    log = AccessLog(descriptor, as_text)
    to = Recorder(Metrics(), log, ManualClock())
    for model in ("m", "\ud800", "a\nb", "é"):
        to.begun()
        to.record(exchange(model=model))
    to.refused(exchange(error="bad_request", status=400))
    log.close()
    os.close(descriptor)
    lines = path.read_bytes().splitlines()
    assert len(lines) == 5
    if not as_text:
        assert [json.loads(line)["model"] for line in lines] == ["m", "\ud800", "a\nb", "é", None]
