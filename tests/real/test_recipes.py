"""The recipes of docs/recipes do what they say: their files are run as they stand, with the official SDK."""

from __future__ import annotations

import base64
import json
import re
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from tests.real.recipe import KEY_OF_WEIR, Kitchen, files_of, kitchen
from tests.support.weir_process import ROOT

LOOP = "half-price-loop.md"
NIGHTLY = "nightly-job.md"


def stats(made: Kitchen) -> Any:
    return json.loads(made.sim.ask("GET", "/sim/stats"))


def assert_half_price(made: Kitchen, count: int) -> None:
    """Assert that so many answers cost half of what they would have."""
    paid, standard = made.metric("weir_job_usd_total"), made.metric("weir_job_standard_usd_total")
    assert paid > 0
    assert paid == pytest.approx(standard / 2)
    assert made.metric("weir_job_executions_total", kind="answer") == count
    assert made.metric("weir_job_executions_total") == count, "nothing was paid twice"
    assert made.metric("weir_job_rescues_total") == 0


def test_a_loop_is_half_price_by_one_route(tmp_path: Path) -> None:
    """With the oldest SDK of those that are tried; the other programs run with the newest."""
    with kitchen(LOOP, tmp_path) as made:
        printed = made.printed("classify.py", "openai-1")
        assert_half_price(made, 20)
        tiers = stats(made)["executions_by_tier"]
    assert len(printed) == 20
    assert all(printed)
    assert {tier: sum(counts.values()) for tier, counts in tiers.items()} == {"flex": 20}


def test_so_is_a_script_that_asks_all_at_once(tmp_path: Path) -> None:
    with kitchen(LOOP, tmp_path) as made:
        printed = made.printed("classify_together.py")
        assert_half_price(made, 40)
    assert len(printed) == 40
    assert all(printed)


def test_headers_jobs_and_bookings_show_it(tmp_path: Path) -> None:
    with kitchen(LOOP, tmp_path) as made:
        lane, tier = made.printed("look.py")
        host, port = made.weir.admin_address
        told = [
            weir("jobs", act, "--admin", f"{host}:{port}", "--json", *of)
            for act, of in (("list", []), ("show", [re.findall(r'job="(\w+)"', lane)[0]]))
        ]
    assert lane.startswith("batch; tier=flex; job=")
    assert tier == "flex"
    listed, shown = map(json.loads, told)
    assert [job["id"] for job in listed["jobs"]] == [shown["id"]]
    (booking,) = shown["bookings"]
    assert booking["usd"] == pytest.approx(booking["standard_usd"] / 2)


def test_explaining_says_so_before(tmp_path: Path) -> None:
    policies, request = tmp_path / "weir.yaml", tmp_path / "request.json"
    policies.write_text(files_of(LOOP)["weir.yaml"], encoding="utf-8")
    request.write_text('{"model": "gpt-5-mini", "messages": [{"role": "user", "content": "Hello"}]}')
    options = ["--policies", str(policies), "--json", str(request)]
    patient = json.loads(weir("explain", "--header", "x-stainless-read-timeout: 600", *options))
    hasty = json.loads(weir("explain", "--header", "x-stainless-read-timeout: 60", *options))
    assert patient["lane"]["value"] == "batch"
    assert hasty["lane"]["value"] != "batch"


def test_a_nightly_job_hands_in_and_collects(tmp_path: Path) -> None:
    with kitchen(NIGHTLY, tmp_path) as made:
        assert made.printed("send.py") == [], "every request got a ticket"
        assert len(set(json.loads((tmp_path / "tickets.json").read_text()).values())) == 100
        printed = made.printed("collect.py")
        assert_half_price(made, 100)
        batches = stats(made)["batches_created"]
    assert [line.partition(" ")[0] for line in printed] == [f"review-{number}" for number in range(100)]
    assert not [line for line in printed if "failed" in line]
    assert batches == 1


def test_a_webhook_tells_of_every_ticket_once(tmp_path: Path) -> None:
    secret = "whsec_" + base64.b64encode(b"a key of some thirty bytes or so").decode()
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    told = {"WEBHOOK_URL": f"http://127.0.0.1:{port}/", "WEBHOOK_SECRET": secret}
    with (
        kitchen(NIGHTLY, tmp_path, "weir-told.yaml", **told) as made,
        made.program("receive.py", PORT=str(port), **told) as receiver,
    ):
        try:
            assert made.printed("send.py") == []
            tickets = json.loads((tmp_path / "tickets.json").read_text())
            assert receiver.stdout is not None
            heard = [receiver.stdout.readline().split() for _ in tickets]
            for forged in ({}, {"webhook-id": "evt_1", "webhook-timestamp": f"{time.time():.0f}"}):
                fields = {**forged, "webhook-signature": "v1,Zm9yZ2Vk"}
                call = urllib.request.Request(f"http://127.0.0.1:{port}/", b"{}", fields)
                with pytest.raises(urllib.error.HTTPError, match="400"):
                    urllib.request.urlopen(call)
            printed = made.printed("collect.py")
        finally:
            receiver.kill()
        more = receiver.stdout.read()
    assert sorted(place for _, place in heard) == sorted(tickets.values())
    assert {kind for kind, _ in heard} == {"weir.job.succeeded"}
    assert more == "", "each is told once, and nobody else can tell"
    assert len(printed) == 100


def weir(*arguments: str) -> str:
    """Run a command of Weir's; return what it printed."""
    done = subprocess.run(
        [sys.executable, "-m", "proxy.cli.main", *arguments],
        cwd=ROOT,
        env={"UPSTREAM": "http://127.0.0.1:9/v1", "OPENAI_API_KEY": KEY_OF_WEIR, "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout
