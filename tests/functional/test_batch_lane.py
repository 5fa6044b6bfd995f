"""Deferred requests from the caller's side: held, with a ticket, or as a background response."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from proxy.sim.scenario import BatchRules, FaultMatch, FaultRule, Faults, Timing
from tests.support.deferring import POLICY, deferring, poll
from tests.support.job_worker import FAST
from tests.support.raw_client import RawAnswer
from tests.support.weir import RunningWeir

CHAT = b'{"model":"gpt-5-mini","messages":[{"role":"user","content":"Classify: late parcel"}]}'
STREAM = CHAT.replace(b"{", b'{"stream":true,', 1)
BACKGROUND = b'{"model":"gpt-5-mini","input":"Classify: late parcel","background":true}'
FIRST_TRY = ("x-stainless-retry-count", "0")
ALICE = [("Authorization", "Bearer sk-alice"), FIRST_TRY]
ALICE_AGAIN = [("Authorization", "Bearer sk-alice"), ("x-stainless-retry-count", "1")]
BOB = [("Authorization", "Bearer sk-bob"), FIRST_TRY]
TICKET = ("Prefer", "respond-async")
URGENCY = ("x-weir-urgency", "deferrable")
SLOW_BATCHES = replace(FAST, batches=BatchRules(turnaround_seconds=30.0, creations_per_hour=0))
SLOW_FLEX = replace(FAST, timing=Timing(base_ms=600, prefill_ms_per_token=0, decode_ms_per_token=0))


def post(
    proxy: RunningWeir, path: str, body: bytes, headers: list[tuple[str, str]] | None = None
) -> RawAnswer:
    return proxy.client(20).request("POST", path, body, ALICE if headers is None else headers)


def chat(proxy: RunningWeir, body: bytes = CHAT, headers: list[tuple[str, str]] | None = None) -> RawAnswer:
    return post(proxy, "/v1/chat/completions", body, headers)


def get(proxy: RunningWeir, path: str, headers: list[tuple[str, str]] | None = None) -> RawAnswer:
    return proxy.client().request("GET", path, headers=ALICE if headers is None else headers)


def lane(answer: RawAnswer) -> str:
    return answer.header("x-weir-lane") or ""


def retrieved(proxy: RunningWeir, response_id: str, seconds: float = 10.0) -> dict[str, Any]:
    until = time.monotonic() + seconds
    while True:
        told: dict[str, Any] = json.loads(get(proxy, f"/v1/responses/{response_id}").body)
        if told["status"] not in ("queued", "in_progress"):
            return told
        assert time.monotonic() < until, told
        time.sleep(0.02)


# ---- held


def test_a_plain_call_is_answered_through_flex_and_says_so(tmp_path: Path) -> None:
    with deferring(tmp_path) as (proxy, sim):
        answer = chat(proxy)
        (record,) = proxy.log(1)
        executions = sim.stats()["executions_by_tier"]
    assert answer.status == 200
    assert answer.header("content-length") == str(len(answer.body)), "no byte before the answer was there"
    assert json.loads(answer.body)["service_tier"] == "flex"
    assert lane(answer).startswith(f'batch; tier=flex; job="{record["job"]}"')
    assert (record["lane"], record["tier"], record["finish_reason"]) == ("batch", "flex", "stop")
    assert record["cost_usd"] > 0
    assert record["queue_ms"] > 0
    assert record["overhead_ms"] < record["total_ms"]
    assert [sum(counts.values()) for counts in executions.values()] == [1]


def test_a_held_stream_begins_at_once_and_gets_the_answer_as_events(tmp_path: Path) -> None:
    with deferring(tmp_path, scenario=SLOW_FLEX) as (proxy, _):
        client = proxy.client(20)
        body = STREAM.replace(b"{", b'{"stream_options":{"include_usage":true},', 1)
        client.send_request("POST", "/v1/chat/completions", body, [*ALICE, URGENCY])
        begun = time.monotonic()
        head = client.read_head()
        head_seconds = time.monotonic() - begun
        text = b"".join(piece for piece in client.chunks() if piece)
        total_seconds = time.monotonic() - begun
        (record,) = proxy.log(1)
    assert head.status == 200
    assert (head.header("content-type") or "").startswith("text/event-stream")
    assert head_seconds < 0.5 < total_seconds
    assert text.startswith(b": keep-alive\n\n")
    assert text.endswith(b"data: [DONE]\n\n")
    events = [json.loads(line[6:]) for line in text.split(b"\n\n") if line.startswith(b"data: {")]
    assert record["ttft_ms"] is None, "how long the provider took is not known here"
    assert record["tpot_ms"] is None
    assert record["tokens_out"] == events[-1]["usage"]["completion_tokens"] > 0
    assert events[-1]["choices"] == []
    said = "".join(choice["delta"].get("content") or "" for event in events for choice in event["choices"])
    assert said


def test_a_stream_that_was_not_called_deferrable_gets_its_tokens_as_they_come(tmp_path: Path) -> None:
    with deferring(tmp_path) as (proxy, _):
        answer = chat(proxy, STREAM)
        flex = chat(proxy, STREAM.replace(b"{", b'{"service_tier":"flex",', 1))
    assert lane(answer) == 'stream; reason="interactive"'
    assert "a stream that needs its tokens as they come is not deferred" in lane(flex)
    assert b'"service_tier":"flex"' in flex.body, "it asked for the tier itself, and gets it"


def test_white_space_keeps_a_caller_alive_where_the_route_says_so(tmp_path: Path) -> None:
    with deferring(tmp_path, scenario=SLOW_FLEX, extra="keep_alive: whitespace") as (proxy, _):
        answer = chat(proxy)
        (record,) = proxy.log(1)
    assert answer.header("content-type") == "application/json"
    assert answer.body.startswith(b" ")
    assert json.loads(answer.body)["choices"]
    assert record["tokens_out"] > 0


def test_the_providers_own_refusal_is_the_answer(tmp_path: Path) -> None:
    with deferring(tmp_path) as (proxy, _):
        answer = chat(proxy, b'{"model":"gpt-5-mini","messages":[],"temperature":7}')
    assert answer.status == 400
    assert "error" in json.loads(answer.body)
    assert lane(answer).startswith("batch;")


def test_an_sdks_retry_finds_its_job(tmp_path: Path) -> None:
    with deferring(tmp_path, scenario=SLOW_FLEX) as (proxy, sim):
        first = proxy.client()
        first.send_request("POST", "/v1/chat/completions", CHAT, ALICE)
        time.sleep(0.3)
        first.reset()
        answer = chat(proxy, headers=ALICE_AGAIN)
        executions = sim.stats()["executions_total"]
        jobs = json.loads(proxy.admin("/jobs")[1])["jobs"]
    assert answer.status == 200
    assert (executions, len(jobs)) == (1, 1)


def test_what_an_sdk_calls_first_tries_are_jobs_of_their_own(tmp_path: Path) -> None:
    with deferring(tmp_path) as (proxy, sim):
        assert [chat(proxy).status for _ in range(3)] == [200, 200, 200]
        assert sim.stats()["executions_total"] == 3


def test_retries_of_samples_find_as_many_jobs_after_their_callers_are_gone(tmp_path: Path) -> None:
    slow = replace(FAST, timing=Timing(base_ms=1500, prefill_ms_per_token=0, decode_ms_per_token=0))
    with deferring(tmp_path, scenario=slow) as (proxy, sim):
        firsts = [proxy.client() for _ in range(3)]
        for client in firsts:
            client.send_request("POST", "/v1/chat/completions", CHAT, ALICE)
        time.sleep(0.4)
        for client in firsts:
            client.reset()
        retries = [proxy.client(20) for _ in range(3)]
        for client in retries:
            client.send_request("POST", "/v1/chat/completions", CHAT, ALICE_AGAIN)
        answers = [client.read_answer() for client in retries]
        executions = sim.stats()["executions_total"]
    assert len({json.loads(answer.body)["id"] for answer in answers}) == executions == 3
    assert all(" attached;" in lane(answer) for answer in answers)


# ---- not deferred, and why


@pytest.mark.parametrize("body", [b"", b"[]", b"null", b'"x"', b'{"model":"gpt-5-mini"', b"\xff"])
def test_what_is_no_json_object_goes_on_as_if_there_were_no_batch_lane(tmp_path: Path, body: bytes) -> None:
    with deferring(tmp_path) as (proxy, _):
        answer = chat(proxy, body)
        for method in ("GET", "HEAD"):
            assert proxy.client().request(method, "/v1/chat/completions", headers=ALICE).status in (404, 405)
        jobs = json.loads(get(proxy, "/weir/v1/jobs").body)["data"]
    assert answer.status == 400
    assert not lane(answer).startswith("batch")
    assert "only a JSON object is deferred" in lane(answer)
    assert jobs == []


def test_only_a_post_is_deferred(tmp_path: Path) -> None:
    with deferring(tmp_path) as (proxy, _):
        answer = proxy.client().request("GET", "/v1/chat/completions", CHAT, [*ALICE, TICKET])
    assert answer.status in (404, 405)
    assert "only a POST is deferred" in lane(answer)


def test_a_deadline_that_does_not_count_is_named(tmp_path: Path) -> None:
    with deferring(tmp_path) as (proxy, _):
        answer = chat(proxy, headers=[*ALICE, TICKET, ("x-weir-deadline", "tomorrow")])
    assert answer.status == 202
    ignored = "x-weir-deadline ignored: neither a duration nor an RFC 3339 time"
    assert f'reason="deferrable; {ignored}"' in lane(answer)


def test_asking_for_the_head_of_a_job_delivers_nothing(tmp_path: Path) -> None:
    with deferring(tmp_path) as (proxy, _):
        job_id = json.loads(chat(proxy, headers=[*ALICE, TICKET]).body)["id"]
        path = f"/weir/v1/jobs/{job_id}"
        until = time.monotonic() + 10
        while (head := proxy.client().request("HEAD", path, headers=ALICE)).status == 202:
            assert time.monotonic() < until
            time.sleep(0.02)
        (before,) = json.loads(get(proxy, "/weir/v1/jobs").body)["data"]
        as_response = get(proxy, f"/v1/responses/resp_weir_{job_id}")
        answer = get(proxy, path)
        (after,) = json.loads(get(proxy, "/weir/v1/jobs").body)["data"]
    assert head.status == answer.status == 200
    assert (before["status"], after["status"]) == ("succeeded", "delivered")
    assert as_response.status == 404, "a chat ticket is no response"


@pytest.mark.parametrize(
    ("body", "headers", "reason"),
    [
        (
            CHAT.replace(b"gpt-5-mini", b"gpt-unheard-of"),
            ALICE,
            "the price table has no price for this model",
        ),
        (CHAT, [*ALICE, ("x-stainless-read-timeout", "10")], "caller waits only 10 s"),
        (CHAT, [*ALICE, ("x-weir-deadline", "3s")], "deadline of 3 s is too short to defer"),
    ],
)
def test_what_is_not_deferred_goes_direct_and_says_why(
    tmp_path: Path, body: bytes, headers: list[tuple[str, str]], reason: str
) -> None:
    with deferring(tmp_path) as (proxy, _):
        answer = chat(proxy, body, headers)
        explained = proxy.client().request("POST", "/v1/chat/completions", body, headers)
    assert answer.status == 200
    assert reason in lane(answer)
    assert not lane(answer).startswith("batch")
    assert lane(explained) == lane(answer)


def test_a_tool_loop_is_never_deferred(tmp_path: Path) -> None:
    body = (
        b'{"model":"gpt-5-mini","messages":[{"role":"user","content":"x"},{"role":"assistant","tool_calls":'
        b'[{"id":"c1","type":"function","function":{"name":"f","arguments":"{}"}}]},'
        b'{"role":"tool","tool_call_id":"c1","content":"1"}]}'
    )
    with deferring(tmp_path) as (proxy, _):
        answer = chat(proxy, body)
    assert lane(answer) == 'stream; reason="interactive"'
    assert "never deferrable" in (answer.header("x-weir-urgency") or "")


def test_callers_credentials_are_not_kept_without_a_key(tmp_path: Path) -> None:
    with deferring(tmp_path, key="timeouts: {connect: 5s}") as (proxy, _):
        answer = chat(proxy)
    assert answer.status == 200
    assert "credentials cannot be kept without WEIR_SECRET_KEY" in lane(answer)


def test_callers_credentials_are_kept_only_sealed(tmp_path: Path) -> None:
    secret = "k" * 40
    with deferring(tmp_path, key="timeouts: {connect: 5s}", secret_key=secret) as (proxy, _):
        ticket = chat(proxy, headers=[*ALICE, TICKET])
        answer = poll(proxy, ticket.header("location") or "", ALICE)
    assert answer.status == 200
    kept = b"".join(path.read_bytes() for path in tmp_path.glob("jobs.db*"))
    assert kept
    for text in (b"sk-alice", b"late parcel", secret.encode()):
        assert text not in kept


def test_without_a_store_nothing_is_deferred(tmp_path: Path) -> None:
    with deferring(tmp_path, store="off") as (proxy, _):
        answer = chat(proxy)
        jobs = proxy.admin("/jobs")[0]
    assert "batch lane not enabled" in lane(answer)
    assert jobs == 404


def test_several_queries_do_not_travel(tmp_path: Path) -> None:
    with deferring(tmp_path) as (proxy, _):
        answer = post(proxy, "/v1/chat/completions?api-version=1", CHAT)
    assert "a query string is not deferred" in lane(answer)


# ---- tickets


def test_a_ticket_leads_to_the_answer(tmp_path: Path) -> None:
    with deferring(tmp_path, "batch") as (proxy, sim):
        ticket = chat(proxy, headers=[*ALICE, TICKET])
        where = ticket.header("location") or ""
        answer = poll(proxy, where, ALICE)
        again = get(proxy, where)
        executions = sim.stats()["executions_by_tier"]
        (shown,) = json.loads(proxy.admin("/jobs")[1])["jobs"]
    assert (ticket.status, ticket.header("preference-applied")) == (202, "respond-async")
    assert where == f"/weir/v1/jobs/{json.loads(ticket.body)['id']}"
    assert int(ticket.header("retry-after") or 0) <= 60
    assert (answer.status, answer.header("content-type")) == (200, "application/json")
    assert json.loads(answer.body)["choices"]
    assert again.body == answer.body
    assert list(executions) == ["batch"]
    assert (shown["state"], shown["ended_as"]) == ("delivered", "succeeded")


def test_the_same_ticket_is_given_twice(tmp_path: Path) -> None:
    plain = [("Authorization", "Bearer sk-alice"), TICKET]
    with deferring(tmp_path, "batch", SLOW_BATCHES) as (proxy, _):
        places = {chat(proxy, headers=plain).header("location") for _ in range(2)}
        other = chat(proxy, headers=[("Authorization", "Bearer sk-bob"), TICKET]).header("location")
    assert len(places) == 1
    assert other not in places


def test_nobody_sees_anothers_job(tmp_path: Path) -> None:
    with deferring(tmp_path, "batch", SLOW_BATCHES) as (proxy, _):
        where = chat(proxy, headers=[*ALICE, TICKET]).header("location") or ""
        foreign = get(proxy, where, BOB)
        unknown = get(proxy, "/weir/v1/jobs/" + "0" * 32, BOB)
        erased = proxy.client().request("DELETE", where, headers=BOB)
        listed = [json.loads(get(proxy, "/weir/v1/jobs", who).body)["data"] for who in (ALICE, BOB, [])]
        own = get(proxy, where)
    assert [foreign.status, unknown.status, erased.status] == [404, 404, 404]
    assert foreign.body == unknown.body
    assert [len(jobs) for jobs in listed] == [1, 0, 0]
    assert own.status == 202


def test_a_job_is_cancelled_and_erased_on_request(tmp_path: Path) -> None:
    with deferring(tmp_path, "batch", SLOW_BATCHES) as (proxy, _):
        where = chat(proxy, headers=[*ALICE, TICKET]).header("location") or ""
        cancelled = [post(proxy, f"{where}/cancel", b"") for _ in range(2)]
        answer = get(proxy, where)
        erased = proxy.client().request("DELETE", where, headers=ALICE)
        gone = get(proxy, where)
    assert [told.status for told in cancelled] == [200, 200]
    assert (answer.status, json.loads(answer.body)["error"]["code"]) == (410, "job_cancelled")
    assert (erased.status, gone.status) == (200, 404)


def test_a_preference_that_the_route_does_not_allow_is_ignored(tmp_path: Path) -> None:
    with deferring(tmp_path) as (proxy, _):
        answer = post(proxy, "/v1/embeddings", b'{"model":"text-embedding-3-small","input":"a"}')
    assert answer.status == 200, "held callers of a batch-only API go direct: no batch is quick enough"


# ---- background responses


def test_a_background_response_comes_through_the_batch_tier(tmp_path: Path) -> None:
    with deferring(tmp_path, "batch") as (proxy, sim):
        made = json.loads(post(proxy, "/v1/responses", BACKGROUND).body)
        told = retrieved(proxy, made["id"])
        executions = sim.stats()["executions_by_tier"]
    assert (made["object"], made["status"], made["background"]) == ("response", "queued", True)
    assert (told["id"], told["status"]) == (made["id"], "completed")
    assert told["output"][-1]["content"][0]["text"]
    assert list(executions) == ["batch"]


def test_a_background_response_is_cancelled_and_deleted_in_its_apis_own_way(tmp_path: Path) -> None:
    with deferring(tmp_path, "batch", SLOW_BATCHES) as (proxy, _):
        path = f"/v1/responses/{json.loads(post(proxy, '/v1/responses', BACKGROUND).body)['id']}"
        streamed = get(proxy, f"{path}?stream=true&starting_after=1")
        cancelled = [json.loads(post(proxy, f"{path}/cancel", b"").body)["status"] for _ in range(2)]
        deleted = json.loads(proxy.client().request("DELETE", path, headers=ALICE).body)
        gone = get(proxy, path)
        foreign = get(proxy, "/v1/responses/resp_of_the_provider")
    assert (streamed.status, json.loads(streamed.body)["error"]["param"]) == (400, "stream")
    assert cancelled == ["cancelled", "cancelled"]
    assert (deleted["object"], deleted["deleted"]) == ("response", True)
    assert gone.status == foreign.status == 404
    assert "x-weir" not in gone.body.decode(), "the upstream says so itself"


def test_background_with_a_stream_goes_to_the_upstream(tmp_path: Path) -> None:
    with deferring(tmp_path, "batch") as (proxy, _):
        answer = post(proxy, "/v1/responses", BACKGROUND.replace(b"{", b'{"stream":true,', 1))
    assert "a stream that needs its tokens as they come is not deferred" in lane(answer)


def test_a_failed_background_response_says_why(tmp_path: Path) -> None:
    with deferring(tmp_path, "batch") as (proxy, _):
        body = BACKGROUND.replace(b"{", b'{"temperature":9,', 1)
        told = retrieved(proxy, json.loads(post(proxy, "/v1/responses", body).body)["id"])
    assert told["status"] == "failed"
    assert told["error"]["code"] == "invalid_prompt"
    assert told["error"]["message"]


def test_what_continues_a_deferred_response_waits_for_it(tmp_path: Path) -> None:
    slow = replace(FAST, batches=BatchRules(turnaround_seconds=0.5, creations_per_hour=0))
    with deferring(tmp_path, "batch", slow) as (proxy, sim):
        made = json.loads(post(proxy, "/v1/responses", BACKGROUND).body)
        follow = b'{"model":"gpt-5-mini","input":"And why?","previous_response_id":"%b"}'
        answer = post(proxy, "/v1/responses", follow % made["id"].encode())
        told = retrieved(proxy, made["id"])
        executions = sim.stats()["executions_by_tier"]
    assert told["status"] == "completed"
    assert answer.status == 200
    assert made["id"] != json.loads(answer.body)["previous_response_id"], "the provider has a name of its own"
    assert {tier: sum(counts.values()) for tier, counts in executions.items()} == {"batch": 1, "default": 1}


def test_what_continues_a_deferred_response_need_not_match_a_route_that_reads_it(tmp_path: Path) -> None:
    narrow = "match: {model: [gpt-5-mini], path:"
    with deferring(tmp_path, "batch", policy=POLICY.replace("match: {path:", narrow)) as (proxy, _):
        made = json.loads(post(proxy, "/v1/responses", BACKGROUND).body)
        follow = b'{"model":"gpt-5","input":"And why?","previous_response_id":"%b"}' % made["id"].encode()
        answer = post(proxy, "/v1/responses", follow)
    assert "no route matched" in lane(answer)
    parent = json.loads(answer.body)["previous_response_id"]
    assert parent.startswith("resp_")
    assert parent != made["id"], "it was sent under the provider's own id"


# ---- operators


def test_operators_see_and_cancel_jobs(tmp_path: Path) -> None:
    with deferring(tmp_path, "batch", SLOW_BATCHES) as (proxy, _):
        chat(proxy, headers=[*ALICE, TICKET])
        listed = json.loads(proxy.admin("/jobs?state=accepted,packed,submitted&limit=5")[1])
        (job,) = listed["jobs"]
        bad = proxy.admin("/jobs?state=nonsense")
        shown = json.loads(proxy.admin(f"/jobs/{job['id']}")[1])
        unknown = proxy.admin("/jobs/nonsense")
    assert (job["route"], job["upstream"], job["tier"]) == ("deferrable", "openai", "batch")
    assert bad[0] == 400
    assert unknown[0] == 404
    assert shown["bookings"] == []
    assert "late parcel" not in json.dumps(shown)
    assert "owner" not in shown


def test_what_jobs_cost_and_save_is_counted(tmp_path: Path) -> None:
    with deferring(tmp_path) as (proxy, _):
        chat(proxy)
        paid = proxy.metric("weir_job_usd_total", route="deferrable", tier="flex")
        standard = proxy.metric("weir_job_standard_usd_total", route="deferrable")
        ended = proxy.metric("weir_jobs_ended_total", tier="flex", ended_as="succeeded")
        down = proxy.metric("weir_job_store_unavailable")
    assert ended == 1
    assert paid == pytest.approx(standard / 2)
    assert down == 0


def test_faults_of_the_provider_do_not_reach_a_held_caller(tmp_path: Path) -> None:
    faults = FaultRule(do=Faults(status=503), match=FaultMatch(path="/v1/chat/*"), first=2)
    with deferring(tmp_path, scenario=replace(FAST, faults=(faults,))) as (proxy, _):
        answer = chat(proxy)
    assert answer.status == 200
