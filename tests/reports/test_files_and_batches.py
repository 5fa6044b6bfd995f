"""Callers' own files and batches: whose they are, which ids are known, proxies in a row (reports B87-B89)."""

from __future__ import annotations

import json
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.job_worker import FAST, QUICK
from tests.support.raw_client import RawAnswer, RawClient
from tests.support.serving import CHAT, BatchCaller, chat_line
from tests.support.weir import RunningWeir, weir
from tests.unit.sim.running import running

ROUTED = """
version: 1
routes:
  - {name: all, match: {path: '*'}, urgency: {default: soon}, steps: [{cap_output: {default: 5, max: 60}}]}
"""
WORKER = replace(QUICK, name="")
POLICIES = pytest.mark.parametrize("policies", [None, ROUTED], ids=["unmatched", "routed"])


ALICE, BOB = ("Authorization", "Bearer sk-alice"), ("Authorization", "Bearer sk-bob")


class Direct:
    """A provider that is asked without a proxy."""

    def __init__(self, origin: str) -> None:
        host, _, port = origin.removeprefix("http://").rpartition(":")
        self._address = (host, int(port))

    def client(self, timeout_seconds: float = 10.0) -> RawClient:
        return RawClient(self._address, timeout_seconds)


def created(caller: BatchCaller, file_id: str) -> RawAnswer:
    """Ask for a batch of a file."""
    asked = {"input_file_id": file_id, "endpoint": CHAT, "completion_window": "24h"}
    return caller.ask("POST", "/v1/batches", json.dumps(asked).encode())


# B87
@POLICIES
def test_what_one_key_made_no_other_key_sees(tmp_path: Path, policies: str | None) -> None:
    """The provider keeps its callers apart: their credentials reach it as they are."""
    with running(FAST) as sim, weir(tmp_path, f"{sim.address}/v1", policies) as proxy:
        alice, bob = BatchCaller(proxy, ALICE), BatchCaller(proxy, BOB)
        batch = alice.ended(alice.batch([chat_line("a")]))
        file_id, output = batch["input_file_id"], batch["output_file_id"]
        asked = [
            bob.ask("GET", f"/v1/files/{file_id}"),
            bob.ask("GET", f"/v1/files/{output}/content"),
            bob.ask("DELETE", f"/v1/files/{output}"),
            bob.ask("GET", f"/v1/batches/{batch['id']}"),
            bob.ask("POST", f"/v1/batches/{batch['id']}/cancel"),
        ]
        assert [answer.status for answer in asked] == [404] * 5
        assert created(bob, file_id).status == 400
        assert bob.json("GET", "/v1/files")["data"] == []
        assert bob.json("GET", "/v1/batches")["data"] == []
        assert alice.results(batch).keys() == {"a"}


# B88
@POLICIES
def test_an_id_that_is_not_known_is_the_upstreams_404(tmp_path: Path, policies: str | None) -> None:
    with running(FAST) as sim, weir(tmp_path, f"{sim.address}/v1", policies) as proxy:
        through, direct = BatchCaller(proxy, ALICE), BatchCaller(Direct(sim.address), ALICE)
        for method, path in (
            ("GET", "/v1/files/file-0"),
            ("GET", "/v1/files/file-0/content"),
            ("DELETE", "/v1/files/file-0"),
            ("GET", "/v1/batches/batch_0"),
            ("POST", "/v1/batches/batch_0/cancel"),
        ):
            answer = through.ask(method, path)
            assert (answer.status, answer.body) == (404, direct.ask(method, path).body)
            assert json.loads(answer.body)["error"]["type"] == "invalid_request_error"
        refusal = created(through, "file-0")
        assert (refusal.status, refusal.body) == (400, created(direct, "file-0").body), "it names a parameter"


def whole_cycle(proxy: RunningWeir) -> None:
    """Carry a batch from its file to its results, by ids that only the other end of the row understands."""
    caller = BatchCaller(proxy, ALICE)
    lines = [chat_line(f"line-{number}", f"About {number}.") for number in range(5)]
    created_id = caller.batch([*lines, chat_line("wrong", temperature=7)], metadata={"run": "42"})
    batch = caller.ended(created_id)
    assert (batch["id"], batch["status"], batch["metadata"]) == (created_id, "completed", {"run": "42"})
    assert batch["request_counts"] == {"total": 6, "completed": 5, "failed": 1}
    good, bad = caller.lines(batch, "output"), caller.lines(batch, "error")
    assert {each["custom_id"] for each in good} == {f"line-{number}" for number in range(5)}
    assert [(each["custom_id"], each["response"]["status_code"]) for each in bad] == [("wrong", 400)]
    assert [each["id"] for each in caller.json("GET", "/v1/batches")["data"]] == [batch["id"]]
    files = {each["id"] for each in caller.json("GET", "/v1/files")["data"]}
    assert files == {batch["input_file_id"], batch["output_file_id"], batch["error_file_id"]}
    for file_id in files:
        assert caller.json("DELETE", f"/v1/files/{file_id}")["deleted"]
    assert caller.json("GET", "/v1/files")["data"] == []


# B89
@POLICIES
def test_a_whole_cycle_works_through_two_proxies_in_a_row(tmp_path: Path, policies: str | None) -> None:
    with ExitStack() as stack:
        sim = stack.enter_context(running(FAST))
        back = stack.enter_context(weir(tmp_path, f"{sim.address}/v1", policies))
        front = stack.enter_context(weir(tmp_path, f"{back.url}/v1", policies))
        whole_cycle(front)
        assert sim.stats()["batches_created"] == 1


SERVING = """
version: 1
upstreams: {local: {base_url: URL, provider: PROVIDER, batch_api: {mode: serve}}}
"""


# B89
@POLICIES
def test_the_front_proxy_passes_what_the_one_behind_it_serves(tmp_path: Path, policies: str | None) -> None:
    with ExitStack() as stack:
        sim = stack.enter_context(running(FAST))
        serving = SERVING.replace("URL", f"{sim.address}/v1").replace("PROVIDER", "generic")
        kept = f"sqlite:{tmp_path / 'jobs.db'}"
        back = stack.enter_context(
            weir(tmp_path, None, serving, store=kept, secret_key="k" * 40, worker=WORKER)
        )
        front = stack.enter_context(weir(tmp_path, f"{back.url}/v1", policies))
        whole_cycle(front)
        stats = sim.stats()
        own = {(record["path"], record["lane"]) for record in front.log(10)}
    assert stats["batches_created"] == 0, "the simulated provider knows of calls alone"
    assert sum(stats["executions"].values()) == 5
    assert {lane for _, lane in own} == {"stream"}, "the front one has answered nothing itself"
