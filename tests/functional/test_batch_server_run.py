"""Weir's own batch API works batches off: their lines, their results, their ends."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.support.job_worker import QUICK
from tests.support.raw_upstream import Call, RawUpstream, Script
from tests.support.serving import CHAT, POLICY, BatchCaller, chat_line
from tests.support.weir import RunningWeir, weir

USAGE = {
    "prompt_tokens": 7,
    "completion_tokens": 3,
    "total_tokens": 10,
    "prompt_tokens_details": {"cached_tokens": 2},
}
WORKER = replace(QUICK, name="")


def said(call: Call) -> str:
    """Return the last thing that a chat says."""
    return str(json.loads(call.body)["messages"][-1]["content"])


def echo(call: Call) -> None:
    """Answer with what was said."""
    choice = {"index": 0, "message": {"role": "assistant", "content": said(call)}, "finish_reason": "stop"}
    answer = {"id": "chatcmpl-1", "object": "chat.completion", "choices": [choice], "usage": USAGE}
    call.json(json.dumps(answer).encode(), headers=b"x-request-id: req-of-the-server\r\n")


@contextmanager
def serving(
    tmp_path: Path, script: Script = echo, policy: str = POLICY, **settings: Any
) -> Iterator[tuple[RunningWeir, RawUpstream]]:
    with RawUpstream(script) as upstream:
        chosen: dict[str, Any] = {"store": f"sqlite:{tmp_path / 'jobs.db'}", "worker": WORKER} | settings
        with weir(tmp_path, None, policy.replace("URL", upstream.url), **chosen) as proxy:
            yield proxy, upstream


def text_of(result: dict[str, Any]) -> str:
    return str(result["response"]["body"]["choices"][0]["message"]["content"])


def test_answers_every_line_once_with_counts_usage_and_files(tmp_path: Path) -> None:
    with serving(tmp_path) as (proxy, upstream):
        caller = BatchCaller(proxy)
        lines = [chat_line(f"line-{number}", f"text {number}") for number in range(40)]
        batch = caller.ended(caller.batch(lines, metadata={"night": "one"}))
        results = caller.results(batch)
    assert batch["status"] == "completed"
    assert batch["request_counts"] == {"total": 40, "completed": 40, "failed": 0}
    assert batch["error_file_id"] is None
    assert batch["model"] == "tiny"
    assert batch["metadata"] == {"night": "one"}
    assert batch["usage"]["input_tokens"] == 280
    assert batch["usage"]["input_tokens_details"]["cached_tokens"] == 80
    assert batch["usage"]["total_tokens"] == 400
    assert {name: text_of(result) for name, result in results.items()} == {
        f"line-{number}": f"text {number}" for number in range(40)
    }
    assert results["line-3"]["response"]["status_code"] == 200
    assert results["line-3"]["response"]["request_id"] == "req-of-the-server"
    assert results["line-3"]["error"] is None
    assert len(upstream.calls) == 40


def test_a_line_is_sent_as_its_caller_wrote_it(tmp_path: Path) -> None:
    raw = b'{ "model":"tiny",  "messages":[{"role":"user","content":"h\\u00e9"}], "temperature": 1.0e0 }'
    line = b'{"custom_id":"a","method":"POST","url":"/v1/chat/completions","body":' + raw + b"}\n"
    with serving(tmp_path) as (proxy, upstream):
        caller = BatchCaller(proxy, ("x-team", "night"))
        file_id = caller.upload(line)
        asked = {"input_file_id": file_id, "endpoint": CHAT, "completion_window": "24h"}
        batch_id = caller.json("POST", "/v1/batches", asked)["id"]
        caller.ended(batch_id)
        record = next(each for each in proxy.log(4) if each["path"] == CHAT)
    assert [call.body for call in upstream.calls] == [raw]
    assert upstream.calls[0].target == CHAT.encode()
    assert upstream.calls[0].header("x-team") == b"night"
    assert upstream.calls[0].header("accept-encoding") == b"identity"
    assert upstream.calls[0].header("content-type") == b"application/json"
    assert (record["status"], record["upstream"], record["urgency"]) == (200, "local", "deferrable")
    assert (record["batch"], record["batch_line"]) == (batch_id, 1)
    assert record["tokens_in"] == 7


ROUTED = """
version: 1
upstreams:
  local: {base_url: URL, provider: llamacpp}
defaults: {upstream: local}
routes:
  - name: nightly
    match: {path: /v1/chat/completions, model: tiny, headers: {x-team: night}}
    steps:
      - cap_output: {max: 5}
  - name: forbidden
    match: {path: /v1/chat/completions, model: banned}
    steps:
      - cap_output: {max: 5, on_exceed: reject}
"""


def test_routes_and_steps_apply_to_lines(tmp_path: Path) -> None:
    with serving(tmp_path, policy=ROUTED) as (proxy, upstream):
        caller = BatchCaller(proxy, ("x-team", "night"))
        lines = [chat_line("a", max_tokens=100), chat_line("b", max_tokens=3)]
        lines.append(chat_line("c", max_tokens=100) | {})
        lines[2]["body"]["model"] = "banned"
        batch = caller.ended(caller.batch(lines))
        results = caller.results(batch)
    assert sorted(json.loads(call.body)["max_tokens"] for call in upstream.calls) == [3, 5]
    assert batch["request_counts"] == {"total": 3, "completed": 2, "failed": 1}
    refused = results["c"]["response"]
    assert refused["status_code"] == 400
    assert refused["body"]["error"]["code"] == "rejected_by_policy"


def test_a_lines_own_route_may_lead_to_another_upstream(tmp_path: Path) -> None:
    with RawUpstream(echo) as other:
        policy = (
            ROUTED.replace("defaults:", f"  other: {{base_url: '{other.url}'}}\ndefaults:")
            + "  - {name: elsewhere, match: {model: big}, upstream: other}\n"
        )
        with serving(tmp_path, policy=policy) as (proxy, upstream):
            caller = BatchCaller(proxy)
            lines = [chat_line(f"line-{number}", f"text {number}") for number in range(6)]
            for line in lines[::2]:
                line["body"]["model"] = "big"
            batch = caller.ended(caller.batch(lines))
        assert batch["request_counts"]["completed"] == 6
        assert batch["model"] is None
        assert sorted(map(said, other.calls)) == ["text 0", "text 2", "text 4"]
        assert sorted(map(said, upstream.calls)) == ["text 1", "text 3", "text 5"]


@pytest.mark.parametrize(
    ("status", "tries"), [(b"429 Too Many Requests", 4), (b"503 Unavailable", 4), (b"500 Oops", 3)]
)
def test_a_passing_failure_is_tried_again(tmp_path: Path, status: bytes, tries: int) -> None:
    left = [tries - 1]

    def failing(call: Call) -> None:
        if left[0]:
            left[0] -= 1
            call.json(b'{"error":{"message":"not now"}}', status, b"retry-after-ms: 10\r\n")
        else:
            echo(call)

    with serving(tmp_path, failing) as (proxy, upstream):
        caller = BatchCaller(proxy)
        batch = caller.ended(caller.batch([chat_line("a")]))
        assert proxy.metric("weir_served_line_retries_total", reason=status[:3].decode()) == tries - 1
        assert proxy.metric("weir_served_lines_total", outcome="completed") == 1
        assert proxy.metric("weir_served_batches_ended_total", status="completed") == 1
    assert batch["request_counts"] == {"total": 1, "completed": 1, "failed": 0}
    assert len(upstream.calls) == tries


def test_a_failure_that_stays_becomes_the_lines_result(tmp_path: Path) -> None:
    def failing(call: Call) -> None:
        if said(call) == "well":
            echo(call)
        elif said(call) == "never":
            call.json(b"<html>no</html>", b"400 Bad Request")
        else:
            call.json(b'{"error":{"message":"broken"}}', b"500 Oops")

    with serving(tmp_path, failing) as (proxy, upstream):
        caller = BatchCaller(proxy)
        lines = [chat_line("a", "broken"), chat_line("b", "never"), chat_line("c", "well")]
        batch = caller.ended(caller.batch(lines))
        assert [line["custom_id"] for line in caller.lines(batch, "output")] == ["c"]
        results = caller.results(batch)
    assert batch["status"] == "completed"
    assert batch["request_counts"] == {"total": 3, "completed": 1, "failed": 2}
    assert results["a"]["response"]["status_code"] == 500
    assert results["a"]["response"]["body"]["error"]["message"] == "broken"
    assert results["b"]["response"]["status_code"] == 400
    assert "<html>no</html>" in json.dumps(results["b"])
    assert len([call for call in upstream.calls if said(call) == "broken"]) == 5
    assert len([call for call in upstream.calls if said(call) == "never"]) == 1


def test_lines_wait_for_a_server_that_is_down(tmp_path: Path) -> None:
    with RawUpstream(echo) as gone:
        url, port = gone.url, gone.port
    with weir(
        tmp_path, None, POLICY.replace("URL", url), store=f"sqlite:{tmp_path / 'jobs.db'}", worker=WORKER
    ) as proxy:
        caller = BatchCaller(proxy)
        batch_id = caller.batch([chat_line("a"), chat_line("b")])
        deadline = time.monotonic() + 5
        while not proxy.metric("weir_served_line_retries_total", reason="upstream_connect_failed"):
            assert time.monotonic() < deadline
            time.sleep(0.02)
        assert caller.look(batch_id)["status"] == "in_progress"
        with RawUpstream(echo, on_port=port):
            batch = caller.ended(batch_id)
    assert batch["request_counts"]["completed"] == 2


def test_a_broken_input_fails_the_batch_with_line_numbers(tmp_path: Path) -> None:
    with serving(tmp_path) as (proxy, upstream):
        caller = BatchCaller(proxy)
        lines = [chat_line("a"), chat_line("a"), chat_line("b", url="/v1/embeddings")]
        batch = caller.ended(caller.batch(lines))
    assert batch["status"] == "failed"
    assert {error["line"] for error in batch["errors"]["data"]} == {2, 3}
    assert batch["failed_at"] is not None
    assert batch["output_file_id"] is batch["error_file_id"] is None
    assert not upstream.calls


def test_an_input_that_was_deleted_fails_the_batch(tmp_path: Path) -> None:
    with serving(tmp_path) as (proxy, _):
        caller = BatchCaller(proxy)
        held = [caller.batch([chat_line("a")]) for _ in range(1)]
        caller.ended(held[0])
        file_id = caller.look(held[0])["input_file_id"]
        asked = {"input_file_id": file_id, "endpoint": CHAT, "completion_window": "24h"}
        # Created and its input deleted before anybody can have looked: the same loop takes both at once.
        batch_id = caller.json("POST", "/v1/batches", asked)["id"]
        caller.ask("DELETE", f"/v1/files/{file_id}")
        batch = caller.ended(batch_id)
    assert batch["status"] in ("failed", "completed")
    if batch["status"] == "failed":
        assert batch["errors"]["data"][0]["code"] == "input_file_unreadable"


def test_a_cancelled_batch_keeps_what_is_done_and_says_what_is_not(tmp_path: Path) -> None:
    free = threading.Event()

    def slow(call: Call) -> None:
        if said(call) != "quick":
            free.wait(5)
        echo(call)

    with serving(tmp_path, slow) as (proxy, upstream):
        caller = BatchCaller(proxy)
        lines = [chat_line("first", "quick")] + [chat_line(f"line-{n}", f"slow {n}") for n in range(20)]
        batch_id = caller.batch(lines)
        caller.until(batch_id, completed=1)
        cancelled = caller.json("POST", f"/v1/batches/{batch_id}/cancel")
        assert cancelled["status"] == "cancelling"
        time.sleep(0.2)
        free.set()
        batch = caller.ended(batch_id)
        results = caller.results(batch)
    assert batch["status"] == "cancelled"
    assert batch["cancelled_at"] is not None
    counts = batch["request_counts"]
    assert counts["total"] == 21 == counts["completed"] + counts["failed"] == len(results)
    # What was sent could end, and nothing was begun afterwards.
    assert counts["completed"] == len(upstream.calls)
    assert results["line-19"]["error"]["code"] == "batch_cancelled"


def test_a_batch_expires_with_its_window(tmp_path: Path) -> None:
    free = threading.Event()

    def stuck(call: Call) -> None:
        if said(call) != "quick":
            free.wait(20)
        echo(call)

    with serving(tmp_path, stuck) as (proxy, _):
        caller = BatchCaller(proxy)
        lines = [chat_line("first", "quick")] + [chat_line(f"line-{n}", f"slow {n}") for n in range(5)]
        batch = caller.ended(caller.batch(lines, window="2s"))
        results = caller.results(batch)
        free.set()
    assert batch["status"] == "expired"
    assert batch["expired_at"] - batch["created_at"] in (2, 3)
    assert batch["request_counts"] == {"total": 6, "completed": 1, "failed": 5}
    assert {results[f"line-{n}"]["error"]["code"] for n in range(5)} == {"batch_expired"}


def test_the_last_answer_before_the_end_of_the_window_is_told(tmp_path: Path) -> None:
    def busy(call: Call) -> None:
        call.json(b'{"error":{"message":"busy"}}', b"429 Too Many Requests")

    with serving(tmp_path, busy) as (proxy, _):
        caller = BatchCaller(proxy)
        batch = caller.ended(caller.batch([chat_line("a")], window="2s"))
        results = caller.results(batch)
    assert batch["status"] == "expired"
    assert results["a"]["response"]["status_code"] == 429


def test_a_restart_goes_on_where_it_was(tmp_path: Path) -> None:
    free = threading.Event()
    store = f"sqlite:{tmp_path / 'jobs.db'}"
    lines = [chat_line(f"line-{n}", f"text {n}") for n in range(60)]

    def slow(call: Call) -> None:
        if not free.is_set():
            time.sleep(0.02)
        echo(call)

    with serving(tmp_path, slow, store=store) as (proxy, first):
        caller = BatchCaller(proxy)
        batch_id = caller.batch(lines)
        caller.until(batch_id, completed=5)
    free.set()
    with serving(tmp_path, slow, store=store) as (proxy, second):
        caller = BatchCaller(proxy)
        batch = caller.ended(batch_id)
        results = caller.results(batch)
    assert batch["status"] == "completed"
    assert batch["request_counts"] == {"total": 60, "completed": 60, "failed": 0}
    assert {text_of(results[f"line-{n}"]) for n in range(60)} == {f"text {n}" for n in range(60)}
    # Stopped in peace, no line was run twice.
    assert len(first.calls) + len(second.calls) == 60
    assert len(first.calls) < 60


def test_a_batch_waits_for_an_upstream_that_the_policies_lost(tmp_path: Path) -> None:
    store = f"sqlite:{tmp_path / 'jobs.db'}"
    free = threading.Event()

    def slow(call: Call) -> None:
        free.wait(5)
        echo(call)

    with serving(tmp_path, slow, store=store) as (proxy, _):
        batch_id = BatchCaller(proxy).batch([chat_line("a"), chat_line("b")])
        time.sleep(0.2)
        free.set()
    renamed = POLICY.replace("local", "renamed")
    with serving(tmp_path, store=store, policy=renamed) as (proxy, other):
        caller = BatchCaller(proxy)
        waiting = caller.look(batch_id)
        if waiting["request_counts"]["completed"] < 2:
            time.sleep(0.5)
            assert caller.look(batch_id)["status"] in ("validating", "in_progress")
            assert not other.calls
    with serving(tmp_path, store=store) as (proxy, _):
        batch = BatchCaller(proxy).ended(batch_id, seconds=30)
    assert batch["status"] == "completed"


VLLM = POLICY.replace("llamacpp", "vllm")


def test_vllm_is_told_that_lines_can_wait(tmp_path: Path) -> None:
    with serving(tmp_path, policy=VLLM) as (proxy, upstream):
        caller = BatchCaller(proxy)
        batch = caller.ended(caller.batch([chat_line("a", "usual"), chat_line("b", "own", priority=-1)]))
    assert batch["request_counts"]["completed"] == 2
    assert {said(call): json.loads(call.body)["priority"] for call in upstream.calls} == {
        "usual": 100,
        "own": -1,
    }


@pytest.mark.parametrize(
    "message", ["Got priority 100 but Priority scheduling is not enabled.", "unknown field 'priority'"]
)
def test_a_server_that_refuses_priorities_is_not_told_again(tmp_path: Path, message: str) -> None:
    def strict(call: Call) -> None:
        if b"priority" in call.body:
            refusal = {"object": "error", "message": message, "type": "BadRequestError", "param": None}
            call.json(json.dumps(refusal).encode(), b"400 Bad Request")
        else:
            echo(call)

    with serving(tmp_path, strict, policy=VLLM) as (proxy, upstream):
        caller = BatchCaller(proxy)
        batch = caller.ended(caller.batch([chat_line(f"line-{n}") for n in range(20)]))
    assert batch["request_counts"] == {"total": 20, "completed": 20, "failed": 0}
    refused = [call for call in upstream.calls if b"priority" in call.body]
    assert 1 <= len(refused) <= 4


def test_the_callers_own_credential_goes_with_its_lines(tmp_path: Path) -> None:
    with serving(tmp_path, secret_key="k" * 40) as (proxy, upstream):
        caller = BatchCaller(proxy, ("authorization", "Bearer sk-callers-own"))
        batch = caller.ended(caller.batch([chat_line("a")]))
    assert batch["status"] == "completed"
    assert [call.header("authorization") for call in upstream.calls] == [b"Bearer sk-callers-own"]
    kept = b"".join(path.read_bytes() for path in tmp_path.glob("jobs.db*"))
    assert b"sk-callers-own" not in kept
