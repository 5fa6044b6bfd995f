"""Which jobs go together, when, and what their lines look like."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.jobs.changes import PoolSummary
from proxy.jobs.model import Group, Job
from proxy.jobs.packing import (
    BatchLimits,
    FlushRule,
    UnfitBody,
    clean_body,
    encode_line,
    flush_at,
    flush_reason,
    halves,
    line_bytes,
    plan,
)

URL = "/v1/chat/completions"
RULE = FlushRule(jobs=10, after_seconds=60.0)
GROUP = Group("openai", "account", URL, "m")


def job(number: int, **fields: object) -> Job:
    base = Job(
        f"{number:032x}",
        f"a{number}",
        "o",
        "openai",
        URL,
        "m",
        "account",
        created=float(number),
        deadline=9e9,
    )
    return replace(base, **({"body_bytes": 100, "input_tokens": 10} | fields))  # type: ignore[arg-type]


def pool(jobs: int, size: int = 100, tokens: int = 10, oldest: float = 0.0) -> PoolSummary:
    return PoolSummary(GROUP, jobs, size, tokens, oldest)


def test_a_pool_is_sent_when_it_has_enough_of_anything() -> None:
    limits = BatchLimits(jobs=50, bytes=1000, tokens=100)
    assert flush_reason(pool(9), RULE, limits, now=59.0) is None
    assert flush_reason(pool(10), RULE, limits, now=0.0) == "jobs"
    assert flush_reason(pool(2, size=1000), RULE, limits, now=0.0) == "bytes"
    assert flush_reason(pool(2, tokens=100), RULE, limits, now=0.0) == "tokens"
    assert flush_reason(pool(1), RULE, limits, now=60.0) == "age"
    assert flush_at(pool(1, oldest=5.0), RULE) == 65.0


def test_a_providers_limit_sends_earlier_than_the_route_asks() -> None:
    assert flush_reason(pool(4), RULE, BatchLimits(jobs=4), now=0.0) == "jobs"


def test_jobs_that_wait_for_later_send_nothing_by_age() -> None:
    assert flush_reason(pool(1, oldest=100.0), RULE, BatchLimits(), now=90.0) is None


def test_shared_prefixes_lie_together_oldest_first() -> None:
    jobs = [job(1, prefix_key="b"), job(2, prefix_key="a"), job(3, prefix_key="b"), job(4, prefix_key="a")]
    (batch,) = plan(jobs, BatchLimits(), URL).batches
    assert batch == (jobs[1].id, jobs[3].id, jobs[0].id, jobs[2].id)


def test_batches_stay_within_lines_and_bytes() -> None:
    jobs = [job(number, body_bytes=90_000 if number % 3 else 100) for number in range(120)]
    limits = BatchLimits(jobs=50, bytes=200_000)
    made = plan(jobs, limits, URL)
    by_id = {one.id: one for one in jobs}
    assert sorted(one for batch in made.batches for one in batch) == sorted(by_id)
    for batch in made.batches:
        assert len(batch) <= 50
        assert sum(line_bytes(by_id[one], URL) for one in batch) <= 200_000


def test_a_line_that_is_too_large_alone_is_told_apart() -> None:
    jobs = [job(1), job(2, body_bytes=1001), job(3)]
    assert plan(jobs, BatchLimits(bytes=1000), URL).too_large == (jobs[1].id,)
    assert plan(jobs, BatchLimits(line_bytes=500), URL).too_large == (jobs[1].id,)
    exact = line_bytes(jobs[0], URL)
    assert plan(jobs[:1], BatchLimits(bytes=exact), URL).too_large == ()
    assert plan(jobs[:1], BatchLimits(bytes=exact - 1), URL).too_large == (jobs[0].id,)


def test_a_quota_of_tokens_lets_the_oldest_go() -> None:
    jobs = [job(3), job(1), job(2)]
    made = plan(jobs, BatchLimits(tokens=25), URL)
    assert set(made.batches[0]) == {jobs[1].id, jobs[2].id}
    assert made.later == (jobs[0].id,)
    assert plan(jobs, BatchLimits(tokens=0), URL).batches == ()


def test_nothing_makes_no_batch() -> None:
    assert plan([], BatchLimits(), URL).batches == ()


def test_a_refused_batch_is_halved_until_one_is_left() -> None:
    assert halves(["a", "b", "c"]) == (("a", "b"), ("c",))
    assert halves(["a"]) == (("a",),)
    assert halves([]) == ()


def test_stream_fields_go_and_everything_else_stays_as_written() -> None:
    body = b'{"model": "m",\r\n  "temperature": 1.0e0, "stream":true, "stream_options": {},"\\u0078":"\\n"}'
    assert clean_body(body) == b'{"model": "m",    "temperature": 1.0e0,"\\u0078":"\\n"}'
    assert clean_body(b'{"stream":true,"a":1,"stream":false}') == b'{"a":1}'
    assert clean_body(b'\xef\xbb\xbf {"a":1} \n') == b'{"a":1}'
    assert clean_body(b'{"a":1,"background":true}', ("background",)) == b'{"a":1}'


@pytest.mark.parametrize("body", [b"", b"[1]", b"nonsense", b'{"a":"\xff"}'])
def test_what_is_no_object_is_unfit(body: bytes) -> None:
    with pytest.raises(UnfitBody):
        clean_body(body)


def test_a_line_holds_the_body_as_it_is() -> None:
    line = encode_line("id-1", b'{"n": 1.0}', URL)
    assert line == b'{"custom_id":"id-1","method":"POST","url":"/v1/chat/completions","body":{"n": 1.0}}\n'
    assert encode_line("id-1", b"{}", None) == b'{"custom_id":"id-1","body":{}}\n'


@given(
    st.dictionaries(st.text(), st.recursive(st.none() | st.floats(allow_nan=False) | st.text(), st.lists)),
    st.sampled_from([None, 0, 2]),
)
def test_a_line_is_one_line_of_the_length_that_was_planned(
    members: dict[str, object], indent: int | None
) -> None:
    body = clean_body(json.dumps(members, indent=indent, ensure_ascii=False).encode())
    line = encode_line(job(1).id, body, URL)
    assert line.count(b"\n") == 1
    assert b"\r" not in line
    assert len(line) == line_bytes(job(1, body_bytes=len(body)), URL)
    wanted = {key: value for key, value in members.items() if key not in ("stream", "stream_options")}
    assert json.loads(line)["body"] == wanted
