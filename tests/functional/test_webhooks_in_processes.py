"""Webhooks of processes as operators run them: over restarts and reloads, with no word of their secrets."""

from __future__ import annotations

import json
import signal
import time
from pathlib import Path

import pytest

from tests.functional.test_batch_lane_failures import ALICE, CHAT
from tests.functional.test_webhooks import policy, verified
from tests.support.deferring import PRICES
from tests.support.job_worker import FAST
from tests.support.webhook_receiver import OTHER_SECRET, SECRET, Receiver, receiving
from tests.support.weir_process import WeirProcess, weir_process
from tests.unit.sim.running import Sim, running

TICKET = [*ALICE, ("Prefer", "respond-async")]
TOKEN = "token-in-the-url"


def written(tmp_path: Path, receiver: Receiver, sim: Sim, secret: str = SECRET) -> list[str]:
    """Write policy and prices; return the options that name them and a store."""
    text = policy(receiver, "ops", url=f"{receiver.address}/{TOKEN}", secret=secret)
    text = text.replace("URL", f"{sim.address}/v1").replace("KEY", "api_key: sk-own")
    text = text.replace("TIERS", "flex").replace(", EXTRA", "")
    (tmp_path / "policy.yaml").write_text(text, encoding="utf-8")
    (tmp_path / "prices.yaml").write_text(PRICES, encoding="utf-8")
    options = ["--policies", str(tmp_path / "policy.yaml"), "--prices", str(tmp_path / "prices.yaml")]
    return [*options, "--store", f"sqlite:{tmp_path / 'jobs.db'}"]


def ticket(process: WeirProcess, text: bytes = b"late") -> str:
    answer = process.client().request("POST", "/v1/chat/completions", CHAT.replace(b"late", text), TICKET)
    assert answer.status == 202
    return (answer.header("location") or "").rpartition("/")[2]


@pytest.mark.timeout(90)
def test_what_could_not_be_told_before_a_restart_is_told_after_it(tmp_path: Path) -> None:
    with receiving() as receiver, running(FAST) as sim:
        receiver.always = 500
        options = written(tmp_path, receiver, sim)
        with weir_process(tmp_path, None, *options) as first:
            job = ticket(first)
            receiver.wait(1)
            first.signal(signal.SIGTERM)
            first.process.wait(15)
        receiver.always = 200
        with weir_process(tmp_path, None, *options):
            deliveries = receiver.wait(2, 30)
    assert {verified(each)["id"] for each in deliveries} == {verified(deliveries[0])["id"]}
    assert verified(deliveries[-1])["data"] == {"id": job}


@pytest.mark.timeout(90)
def test_a_secret_is_replaced_by_a_reload_and_nothing_secret_is_ever_said(tmp_path: Path) -> None:
    with receiving() as receiver, running(FAST) as sim:
        receiver.statuses = [410]
        with weir_process(tmp_path, None, *written(tmp_path, receiver, sim)) as process:
            job = ticket(process)
            verified(receiver.wait(1)[0], SECRET)
            until = time.monotonic() + 10
            while "webhook ops is disabled" not in process.output:
                assert time.monotonic() < until, process.output
                time.sleep(0.02)
            # Another address begins anew; a new secret signs from now on.
            written(tmp_path, receiver, sim, secret=OTHER_SECRET)
            path = tmp_path / "policy.yaml"
            path.write_text(path.read_text(encoding="utf-8").replace(TOKEN, f"{TOKEN}-2"), encoding="utf-8")
            process.signal(signal.SIGHUP)
            until = time.monotonic() + 10
            while "policies reloaded" not in process.output:
                assert time.monotonic() < until, process.output
                time.sleep(0.02)
            second = ticket(process, b"lost")
            delivery = receiver.wait(2)[1]
            shown = [process.admin(path).body.decode() for path in ("/metrics", "/jobs", f"/jobs/{job}")]
            said = "".join([process.output, process.log_file.read_text(encoding="utf-8"), *shown])
    assert verified(delivery, OTHER_SECRET)["data"] == {"id": second}
    assert json.loads(shown[2])["notice"]["note"] == "it answered 410"
    for secret in (SECRET, OTHER_SECRET, TOKEN):
        assert secret not in said
