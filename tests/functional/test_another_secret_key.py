"""Weir is started with another WEIR_SECRET_KEY: it says what it cannot read, and nothing else breaks."""

from __future__ import annotations

import json
from pathlib import Path

from tests.support.deferring import deferring, poll
from tests.support.job_worker import FAST
from tests.unit.sim.running import running

CHAT = b'{"model":"gpt-5-mini","messages":[{"role":"user","content":"Classify: late parcel"}]}'
ALICE = [("Authorization", "Bearer sk-alice")]


def test_a_finished_job_under_another_key_is_a_clear_error_until_the_key_is_back(tmp_path: Path) -> None:
    keys = ["k" * 40, "o" * 40]
    with running(FAST) as sim:
        with deferring(tmp_path, "batch", sim=sim, secret_key=keys[0]) as (proxy, _):
            ticket = proxy.client(20).request(
                "POST", "/v1/chat/completions", CHAT, [*ALICE, ("Prefer", "respond-async")]
            )
            where = ticket.header("location") or ""
            answer = poll(proxy, where, ALICE)
        with deferring(tmp_path, "batch", sim=sim, secret_key=keys[1]) as (proxy, _):
            refused = proxy.client().request("GET", where, headers=ALICE)
            status, shown = proxy.admin(f"/jobs/{where.rpartition('/')[2]}")[:2]
        with deferring(tmp_path, "batch", sim=sim, secret_key=f"{keys[1]},{keys[0]}") as (proxy, _):
            again = proxy.client().request("GET", where, headers=ALICE)
    assert answer.status == 200
    assert (refused.status, json.loads(refused.body)["error"]["code"]) == (500, "job_unreadable")
    assert "WEIR_SECRET_KEY" in json.loads(refused.body)["error"]["message"]
    assert (status, "unreadable" in json.loads(shown)["answer"]) == (200, True)
    assert again.body == answer.body
