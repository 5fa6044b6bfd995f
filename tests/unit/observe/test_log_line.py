"""One exchange, one line: valid JSON whatever a caller wrote, of bounded length, and true."""

from __future__ import annotations

import json
from datetime import datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.core.decision import Lane, LaneDecision, StepReport, StepStatus, Urgency, UrgencyDecision
from proxy.core.exchange import Exchange
from proxy.core.usage import Usage
from proxy.observe.log_line import LogRecord, exchange_words, log_line

anything = st.text(st.characters(exclude_categories=()), max_size=40)
FIELDS = list(LogRecord.__struct_fields__)


def exchange(**known: object) -> Exchange:
    made = Exchange("id", 100.0)
    for name, value in known.items():
        assert name in Exchange.__slots__
        object.__setattr__(made, name, value)
    return made


def read(made: Exchange, wall_seconds: float = 1_700_000_000.0) -> dict[str, Any]:
    line = log_line(made, wall_seconds)
    assert line.endswith(b"\n")
    assert line.count(b"\n") == 1
    said: dict[str, Any] = json.loads(line)
    return said


@given(anything, anything, anything, anything, anything, st.integers(0, 599))
def test_whatever_a_caller_wrote_the_line_is_one_json_object(
    model: str, path: str, method: str, traceparent: str, reason: str, status: int
) -> None:
    said = read(
        exchange(
            model=model,
            path=path,
            method=method,
            traceparent=traceparent,
            finish_reason=reason,
            status=status,
            lane=LaneDecision(Lane.STREAM, reason),
            urgency=UrgencyDecision(Urgency.SOON, reason),
            steps=(StepReport("cap_output", StepStatus.SKIPPED, reason, (("set", reason), ("n", 3))),),
        )
    )
    assert list(said) == FIELDS
    assert said["model"] == (model or None)
    assert said["path"] == (path or None)
    assert said["lane_reason"] == said["urgency_reason"] == reason


@given(st.sampled_from(["model", "path", "traceparent"]), anything)
def test_nobody_makes_lines_as_long_as_they_like(name: str, text: str) -> None:
    said = read(exchange(**{name: (text or "x") * 10_000}))
    assert len(said[name]) == 512


def test_what_is_not_known_is_null() -> None:
    said = read(exchange())
    known = {"time", "request_id", "stream", "retries", "total_ms", "overhead_ms", "queue_ms", "connect_ms"}
    known |= {"request_bytes", "response_bytes"}
    assert {name for name in FIELDS if said[name] is not None and said[name] != []} == known


def test_the_figures_are_milliseconds_and_those_of_the_exchange() -> None:
    made = exchange(
        read_at=100.1,
        decided_at=100.2,
        sent_at=100.25,
        first_byte_at=100.5,
        first_token_at=100.75,
        ended_at=102.75,
        queue_seconds=0.125,
        usage=Usage(input_tokens=7, output_tokens=5, cached_tokens=3),
        tokens_before=9,
        tokens_after=8,
    )
    said = read(made)
    figures = ("first_byte_ms", "ttft_ms", "tpot_ms", "total_ms", "queue_ms")
    assert [said[name] for name in figures] == [250, 500, 500, 2750, 125]
    assert (said["tokens_in"], said["tokens_in_before"], said["tokens_out"]) == (7, 9, 5)
    assert said["tokens_cached"] == 3


def test_the_counted_tokens_stand_in_where_the_upstream_reported_none() -> None:
    assert read(exchange(tokens_after=8))["tokens_in"] == 8
    assert read(exchange(tokens_after=8, usage=Usage(output_tokens=1)))["tokens_in"] in (None, 8)


@given(st.floats(0, 4e9))
def test_the_time_is_rfc_3339_to_the_millisecond(wall_seconds: float) -> None:
    said = datetime.fromisoformat(read(exchange(), wall_seconds)["time"])
    assert said.utcoffset() is not None
    assert said.timestamp() == pytest.approx(wall_seconds, abs=0.0011)


def test_steps_are_words() -> None:
    steps = (
        StepReport("trim_history", StepStatus.APPLIED, "", (("saved", 812),)),
        StepReport("cap_output", StepStatus.SKIPPED, "no cap"),
    )
    assert read(exchange(steps=steps))["steps"] == [
        "trim_history;applied;saved=812",
        "cap_output;skipped (no cap)",
    ]


def test_the_text_format_has_the_same_fields() -> None:
    assert list(exchange_words(exchange(model="m"), 0.0)) == FIELDS


def test_nothing_of_a_body_or_a_credential_has_a_field() -> None:
    assert not {name for name in FIELDS if "header" in name or "body" in name or "key" in name}
