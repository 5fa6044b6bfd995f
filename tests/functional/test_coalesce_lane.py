"""The coalesce lane through the whole proxy: counts, records, metrics, headers, the end of the process."""

from __future__ import annotations

import asyncio
import base64
import gzip
import json
import threading
from pathlib import Path
from typing import Any

from proxy.sim.embeddings import unit_vector
from proxy.sim.scenario import Scenario, Timing
from proxy.sim.text import split_tokens
from tests.support.lane_kinds import answer, vector
from tests.support.raw_upstream import Call, RawUpstream
from tests.support.served import served
from tests.support.weir import RunningWeir, weir
from tests.unit.sim.running import running

PATH = "/v1/embeddings"
MODEL = "text-embedding-3-small"
POLICY = """
version: 1
routes:
  - name: pool
    match: {path: /v1/embeddings}
    urgency: {default: soon}
    coalesce: {max_wait: %s}
"""


def body(text: str, **more: Any) -> bytes:
    return json.dumps({"model": MODEL, "input": text} | more).encode()


def serve(call: Call) -> None:
    call.json(json.dumps(answer(json.loads(call.body))).encode())


class Held:
    """Answers the first call only when told to."""

    def __init__(self) -> None:
        self.opened = threading.Event()

    def __call__(self, call: Call) -> None:
        if call.number == 0:
            assert self.opened.wait(8)
        serve(call)


async def _ask(address: tuple[str, int], text: str) -> tuple[bytes, Any]:
    reader, writer = await asyncio.open_connection(*address)
    asked = body(text, encoding_format="base64", dimensions=8)
    lines = f"POST {PATH} HTTP/1.1\r\nHost: w\r\nContent-Length: {len(asked)}\r\n\r\n"
    writer.write(lines.encode() + asked)
    head = await reader.readuntil(b"\r\n\r\n")
    fields = dict(line.lower().split(b": ", 1) for line in head.split(b"\r\n")[1:] if line)
    made = json.loads(await reader.readexactly(int(fields[b"content-length"])))
    writer.close()
    return head, made


def ask_at_once(address: tuple[str, int], texts: list[str]) -> list[tuple[bytes, Any]]:
    """Ask for the vector of each text, all at the same time; return heads and answers."""

    async def all_of_them() -> list[tuple[bytes, Any]]:
        return await asyncio.gather(*(_ask(address, text) for text in texts))

    return asyncio.run(all_of_them())


def wait_for_requests(proxy: RunningWeir, count: int) -> None:
    """Wait until the proxy has read so many requests."""
    done = threading.Event()
    while proxy.metric("weir_in_flight") + proxy.metric("weir_requests_total") < count:
        done.wait(0.002)


def test_two_hundred_callers_at_once_are_a_handful_of_calls_and_every_vector_is_right(tmp_path: Path) -> None:
    """Against the simulated provider, 50 ms a call. Times are the business of `make bench-lanes`."""
    scenario = Scenario(timing=Timing(base_ms=50, prefill_ms_per_token=0, decode_ms_per_token=0))
    with (
        running(scenario) as sim,
        weir(tmp_path, f"http://127.0.0.1:{sim.port}/v1", POLICY % "300ms") as proxy,
    ):
        texts = [f"text number {number}" for number in range(200)]
        assert isinstance(proxy.address, tuple)
        answers = ask_at_once(proxy.address, texts)
        for (_, made), text in zip(answers, texts, strict=True):
            (element,) = made["data"]
            assert element["index"] == 0
            wanted = unit_vector(f"{scenario.seed} {MODEL}", split_tokens(text), 1536, 8)
            assert base64.b64decode(element["embedding"]) == wanted.tobytes()
            assert made["usage"]["prompt_tokens"] == made["usage"]["total_tokens"] > 0
        assert sim.stats()["requests"][PATH] <= 10
        billed = sim.stats()["tokens"]["default"]["input"]
        assert sum(made["usage"]["prompt_tokens"] for _, made in answers) == billed


def test_with_one_call_in_flight_everything_else_leaves_in_one_more(tmp_path: Path) -> None:
    held = Held()
    with served(tmp_path, held, POLICY % "8s") as (proxy, upstream):
        texts = [f"t{number}" for number in range(60)]

        def open_when_all_wait() -> None:
            wait_for_requests(proxy, 60)
            held.opened.set()

        opener = threading.Thread(target=open_when_all_wait)
        opener.start()
        assert isinstance(proxy.address, tuple)
        answers = ask_at_once(proxy.address, texts)
        opener.join()
        assert len(upstream.calls) == 2
        assert [made["data"][0]["embedding"] for _, made in answers] == [vector(text) for text in texts]


def test_headers_log_and_metrics_tell_how_requests_were_carried(tmp_path: Path) -> None:
    held = Held()
    with served(tmp_path, held, POLICY % "8s") as (proxy, _):
        clients = [proxy.client() for _ in range(4)]
        clients[0].send_request("POST", PATH, body("a"))
        wait_for_requests(proxy, 1)
        for client in clients[1:]:
            client.send_request("POST", PATH, body("b"))
        wait_for_requests(proxy, 4)
        held.opened.set()
        answers = [client.read_answer("POST") for client in clients]
        lanes = [got.header("x-weir-lane") for got in answers]
        assert (
            lanes
            == ['coalesce; strategy=merge; size=1; reason="soon"']
            + ['coalesce; strategy=merge; size=3; reason="soon"'] * 3
        )
        ids = {got.header("x-request-id") for got in answers[1:]}
        assert ids == {got.header("x-weir-request-id") for got in answers[1:]}
        records = proxy.log(4)
        assert sorted(record["pool_size"] for record in records) == [1, 3, 3, 3]
        assert {record["strategy"] for record in records} == {"merge"}
        waited = [record["queue_ms"] for record in records if record["pool_size"] == 3]
        assert min(waited) > 0
        for record in records:
            assert record["overhead_ms"] < record["total_ms"]
            assert record["first_byte_ms"] is not None
            assert record["queue_ms"] + record["first_byte_ms"] <= record["total_ms"] + 1
        assert proxy.metric("weir_pooled_requests_total", strategy="merge", closed_by="idle") == 1
        assert proxy.metric("weir_pooled_requests_total", strategy="merge", closed_by="returned") == 3
        assert proxy.metric("weir_micro_batch_size_count", strategy="merge") == 2
        assert proxy.metric("weir_micro_batch_size_sum", strategy="merge") == 4
        assert proxy.metric("weir_upstream_calls_saved_total", route="pool", strategy="merge") == 2
        assert proxy.metric("weir_pool_wait_seconds_count", strategy="merge") == 4


def test_callers_with_different_credentials_are_never_in_one_call(tmp_path: Path) -> None:
    policy = POLICY % "8s" + "upstreams: {up: {base_url: 'http://upstream.test/v1', api_key: shared}}\n"
    held = Held()
    with served(tmp_path, held, policy) as (proxy, upstream):
        clients = [proxy.client() for _ in range(7)]
        keys = ["a", "a", "b", "c", "a", "b", "c"]
        for number, (client, key) in enumerate(zip(clients, keys, strict=True)):
            lines = [("Authorization", f"Bearer {key}")]
            client.send_request("POST", PATH, body(f"{key}{number}"), lines)
            if number == 0:
                upstream.wait_for_calls(1)
        wait_for_requests(proxy, 7)
        held.opened.set()
        assert {client.read_answer("POST").status for client in clients} == {200}
        for call in upstream.calls:
            texts = json.loads(call.body)["input"]
            assert len({text[0] for text in (texts if isinstance(texts, list) else [texts])}) == 1
            assert call.header("authorization") == b"Bearer shared"


def test_a_pool_that_waits_is_sent_before_the_process_ends(tmp_path: Path) -> None:
    held = Held()
    with (
        RawUpstream(held) as upstream,
        weir(
            tmp_path, upstream.url, POLICY % "8s", drain_delay_seconds=0.0, drain_timeout_seconds=5.0
        ) as proxy,
    ):
        clients = [proxy.client() for _ in range(3)]
        clients[0].send_request("POST", PATH, body("a"))
        upstream.wait_for_calls(1)
        for client in clients[1:]:
            client.send_request("POST", PATH, body("b"))
        wait_for_requests(proxy, 3)
        proxy.loop.call_soon_threadsafe(proxy.app.stop)
        upstream.wait_for_calls(2)
        assert json.loads(upstream.calls[1].body)["input"] == ["b", "b"]
        got = [client.read_answer("POST") for client in clients[1:]]
        assert [(each.status, each.is_whole) for each in got] == [(200, True)] * 2
        assert "size=2" in (got[0].header("x-weir-lane") or "")
        assert proxy.log(2)[0]["strategy"] == "merge"
        held.opened.set()
        assert clients[0].read_answer("POST").status == 200


def test_a_caller_that_leaves_its_pool_is_recorded_and_the_others_are_served(tmp_path: Path) -> None:
    held = Held()
    with served(tmp_path, held, POLICY % "8s") as (proxy, upstream):
        first, gone, other = (proxy.client() for _ in range(3))
        first.send_request("POST", PATH, body("a"))
        upstream.wait_for_calls(1)
        gone.send_request("POST", PATH, body("bb"))
        other.send_request("POST", PATH, body("c"))
        wait_for_requests(proxy, 3)
        gone.close()
        (record,) = proxy.log(1)
        assert record["error"] == "client_closed"
        assert (record["strategy"], record["upstream_status"]) == (None, None)
        assert record["overhead_ms"] < 1000
        held.opened.set()
        assert first.read_answer("POST").status == other.read_answer("POST").status == 200
        assert json.loads(upstream.calls[1].body)["input"] == "c"


def test_interactive_requests_are_pooled_where_their_route_pools(tmp_path: Path) -> None:
    policy = (POLICY % "8s").replace("default: soon", "default: interactive")
    with served(tmp_path, serve, policy) as (proxy, _):
        got = proxy.client().request("POST", PATH, body("a"))
        assert got.header("x-weir-lane") == (
            'coalesce; strategy=merge; size=1; reason="interactive, and the route pools"'
        )


def test_a_compressed_body_goes_alone_as_it_came(tmp_path: Path) -> None:
    raw = gzip.compress(body("a"))

    def script(call: Call) -> None:
        assert call.body == raw
        call.json(b"{}")

    with served(tmp_path, script, POLICY % "8s") as (proxy, _):
        got = proxy.client().request("POST", PATH, raw, [("Content-Encoding", "gzip")])
        assert (got.status, got.body) == (200, b"{}")
        assert got.header("x-weir-lane") == 'coalesce; strategy=none; reason="soon"'


def test_a_reload_takes_nobodys_answer_away(tmp_path: Path) -> None:
    held = Held()
    with RawUpstream(held) as upstream:
        file = tmp_path / "pool.yaml"
        file.write_text(POLICY % "8s", encoding="utf-8")
        with weir(tmp_path, upstream.url, file) as proxy:
            clients = [proxy.client() for _ in range(3)]
            clients[0].send_request("POST", PATH, body("a"))
            upstream.wait_for_calls(1)
            clients[1].send_request("POST", PATH, body("b"))
            wait_for_requests(proxy, 2)
            version = proxy.app.pipeline.policies.version
            file.write_text(POLICY % "7s", encoding="utf-8")
            proxy.call(proxy.app.reload)
            while proxy.app.pipeline.policies.version == version:
                threading.Event().wait(0.002)
            clients[2].send_request("POST", PATH, body("c"))
            wait_for_requests(proxy, 3)
            held.opened.set()
            assert {client.read_answer("POST").status for client in clients} == {200}
            assert json.loads(upstream.calls[1].body)["input"] == ["b", "c"]
