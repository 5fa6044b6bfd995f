"""What an attacker found in Weir's own batch API: who may hold up whom, and what a wrong setting may cost."""

from __future__ import annotations

import json
import os
import socket
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from tests.support.job_worker import QUICK
from tests.support.raw_upstream import Call, RawUpstream, Script
from tests.support.serving import POLICY, BatchCaller, chat_line
from tests.support.weir import RunningWeir, weir

WORKER = replace(QUICK, name="")
TWO_UPSTREAMS = """
version: 1
upstreams:
  local: {base_url: URL, provider: llamacpp}
  away: {base_url: "http://127.0.0.1:PORT/v1", provider: llamacpp}
defaults: {upstream: local}
routes:
  - {name: away, match: {headers: {x-to: away}}, upstream: away}
"""
AT_ONCE = 4
"""Batches that a process works on at once."""


def answer(call: Call) -> None:
    call.json(b'{"id": "chatcmpl-1", "object": "chat.completion", "choices": []}')


@contextmanager
def serving(
    tmp_path: Path, policy: str = POLICY, script: Script = answer, **settings: Any
) -> Iterator[tuple[RunningWeir, RawUpstream]]:
    with RawUpstream(script) as upstream:
        chosen: dict[str, Any] = {"store": f"sqlite:{tmp_path / 'jobs.db'}", "worker": WORKER} | settings
        with weir(tmp_path, None, policy.replace("URL", upstream.url), **chosen) as proxy:
            yield proxy, upstream


@contextmanager
def nobody() -> Iterator[int]:
    """Yield a port that nobody listens on."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        yield held.getsockname()[1]


def until_begun(caller: BatchCaller, batch_id: str) -> None:
    until(lambda: caller.look(batch_id)["status"] == "in_progress")


def rows(store: Path, table: str) -> int:
    with closing(sqlite3.connect(store)) as connection:
        found: tuple[int] = connection.execute(f"SELECT count(*) FROM {table}").fetchone()
    return found[0]


def until(is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_batches_of_an_upstream_that_is_away_hold_up_no_others(tmp_path: Path) -> None:
    with (
        nobody() as port,
        serving(tmp_path, TWO_UPSTREAMS.replace("PORT", str(port))) as (proxy, _),
    ):
        lost = BatchCaller(proxy, ("x-to", "away"))
        stuck = [lost.batch([chat_line("a")]) for _ in range(AT_ONCE + 1)]
        for batch_id in stuck[:AT_ONCE]:
            until_begun(lost, batch_id)
        caller = BatchCaller(proxy)
        batch = caller.ended(caller.batch([chat_line("a"), chat_line("b")]))
        assert batch["request_counts"] == {"total": 2, "completed": 2, "failed": 0}
        for batch_id in stuck:
            assert lost.look(batch_id)["status"] in ("validating", "in_progress")


def test_what_waits_behind_others_is_cancelled_and_expires_in_time(tmp_path: Path) -> None:
    patient = replace(WORKER, lease_seconds=60.0)
    with (
        nobody() as port,
        serving(tmp_path, TWO_UPSTREAMS.replace("PORT", str(port)), worker=patient) as (proxy, _),
    ):
        lost = BatchCaller(proxy, ("x-to", "away"))
        for _ in range(AT_ONCE):
            until_begun(lost, lost.batch([chat_line("a")]))
        caller = BatchCaller(proxy)
        late = caller.batch([chat_line("a")], window="1s")
        unwanted = caller.batch([chat_line("a")])
        caller.json("POST", f"/v1/batches/{unwanted}/cancel")
        assert caller.ended(unwanted)["status"] == "cancelled"
        ended = caller.ended(late)
    assert ended["status"] == "expired"
    assert ended["expired_at"] - ended["expires_at"] <= 1


def test_lines_of_a_model_that_is_refused_do_not_hold_up_another(tmp_path: Path) -> None:
    def script(call: Call) -> None:
        if json.loads(call.body)["model"] == "absent":
            call.json(b'{"error": {"message": "loading"}}', b"503 Service Unavailable", b"retry-after: 0\r\n")
        else:
            answer(call)

    lines = [chat_line(f"absent-{n}", model="absent") for n in range(80)]
    lines += [chat_line(f"here-{n}", model="here") for n in range(5)]
    policy = POLICY.replace("provider: llamacpp", "provider: llamacpp, batch_api: {max_in_flight: 2}")
    with serving(tmp_path, policy, script) as (proxy, _):
        caller = BatchCaller(proxy)
        batch_id = caller.batch(lines)
        caller.until(batch_id, completed=5)
        caller.json("POST", f"/v1/batches/{batch_id}/cancel")
        batch = caller.ended(batch_id)
        assert set(caller.results(batch)) == {line["custom_id"] for line in lines}
    assert batch["request_counts"] == {"total": 85, "completed": 5, "failed": 80}


def test_a_form_of_nothing_but_line_ends_holds_up_nobody(tmp_path: Path) -> None:
    with serving(tmp_path) as (proxy, _):
        caller = BatchCaller(proxy)
        form = b"\r\n" * 3_000_000 + b"--cut--\r\n"
        began = time.monotonic()
        refused = caller.ask("POST", "/v1/files", form, ("content-type", "multipart/form-data; boundary=cut"))
        assert (refused.status, json.loads(refused.body)["error"]["code"]) == (400, "invalid_body")
        # Read line by line it would be a dozen seconds, in which nobody else is answered.
        assert time.monotonic() - began < 5


def test_nothing_is_left_of_an_upload_that_is_cut_off(tmp_path: Path) -> None:
    with serving(tmp_path) as (proxy, _):
        head = (
            b"POST /v1/files HTTP/1.1\r\nHost: weir.test\r\nContent-Length: 100000000\r\n"
            b"Content-Type: multipart/form-data; boundary=cut\r\n\r\n"
            b'--cut\r\nContent-Disposition: form-data; name="file"; filename="x"\r\n\r\n'
        )
        store = tmp_path / "jobs.db.batches"
        with proxy.client() as client:
            client.send(head)
            client.send(b"x" * 5_000_000)
            until(lambda: rows(store, "chunks") > 0)
        until(lambda: rows(store, "files") == rows(store, "chunks") == 0)


def test_a_process_without_the_key_costs_no_batch(tmp_path: Path) -> None:
    keys = [os.urandom(32).hex() for _ in range(2)]

    def slow(call: Call) -> None:
        time.sleep(0.05)
        answer(call)

    lines = [chat_line(f"line-{n}") for n in range(40)]
    with serving(tmp_path, script=slow, secret_key=keys[0]) as (proxy, _):
        caller = BatchCaller(proxy, ("authorization", "Bearer me"))
        batch_id = caller.batch(lines)
        caller.until(batch_id, completed=3)
    with serving(tmp_path, script=slow, secret_key=keys[1]) as (proxy, stranger):
        caller = BatchCaller(proxy, ("authorization", "Bearer me"))
        time.sleep(0.5)
        assert caller.look(batch_id)["status"] == "in_progress"
        assert stranger.calls == []
    with serving(tmp_path, script=slow, secret_key=keys[0]) as (proxy, _):
        caller = BatchCaller(proxy, ("authorization", "Bearer me"))
        batch = caller.ended(batch_id)
        assert set(caller.results(batch)) == {line["custom_id"] for line in lines}
    assert batch["request_counts"] == {"total": 40, "completed": 40, "failed": 0}
