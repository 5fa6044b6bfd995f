from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from proxy.cli.main import main
from proxy.core.clock import SystemClock
from proxy.jobs.model import Job, JobTier
from proxy.jobs.sqlite_store import SqliteStore

JOB = Job(
    id="a" * 32,
    attach_key="k",
    owner="owner-digest",
    upstream="openai",
    endpoint="/v1/chat/completions",
    model="gpt-5-mini",
    account="acc",
    created=SystemClock.wall() - 90,
    deadline=SystemClock.wall() + 3 * 3600,
    route="nightly",
    tier=JobTier.BATCH,
)


@pytest.fixture
def store(tmp_path: Path) -> str:
    async def fill() -> None:
        kept = SqliteStore(tmp_path / "jobs.db")
        await kept.open()
        await kept.accept(JOB, b"{}")
        await kept.close()

    asyncio.run(fill())
    return f"sqlite:{tmp_path / 'jobs.db'}"


def test_lists_jobs_as_a_table(store: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["jobs", "list", "--store", store]) == 0
    heading, row, summary = capsys.readouterr().out.splitlines()
    assert heading.split()[:4] == ["id", "state", "tier", "route"]
    assert row.split()[:5] == ["a" * 32, "accepted", "batch", "nightly", "gpt-5-mini"]
    assert row.split()[6] == "3h"
    assert summary == "1 job in all: 1 accepted"


def test_says_everything_as_json(store: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["jobs", "list", "--json", "--state", "failed", "--store", store]) == 0
    assert json.loads(capsys.readouterr().out)["jobs"] == []
    assert main(["jobs", "show", JOB.id, "--json", "--store", store]) == 0
    shown = capsys.readouterr().out
    assert json.loads(shown)["route"] == "nightly"
    assert "owner-digest" not in shown


def test_cancels_retries_and_deletes(store: str, capsys: pytest.CaptureFixture[str]) -> None:
    for act, state in (("cancel", "cancelled"), ("cancel", "cancelled"), ("retry", "accepted")):
        assert main(["jobs", act, JOB.id, "--json", "--store", store]) == 0
        assert json.loads(capsys.readouterr().out)["state"] == state
    assert main(["jobs", "delete", JOB.id, "--store", store]) == 0
    capsys.readouterr()
    assert main(["jobs", "show", JOB.id, "--store", store]) == 1
    assert capsys.readouterr().err == "weir jobs: there is no such job\n"


def test_what_is_asked_wrongly_is_a_usage_error(store: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["jobs", "list", "--state", "nonsense", "--store", store]) == 2
    assert "a state is one of" in capsys.readouterr().err
    assert main(["jobs", "list", "--limit", "x", "--store", store]) == 2
    with pytest.raises(SystemExit) as usage:
        main(["jobs", "list", "--store", "nonsense"])
    assert usage.value.code == 2


def test_where_nothing_runs_it_says_what_to_do(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["jobs", "list", "--admin", "127.0.0.1:9"]) == 1
    assert "--store" in capsys.readouterr().err


def test_a_store_that_is_not_there_is_not_made(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    misspelt = tmp_path / "jbos.db"
    assert main(["jobs", "list", "--store", f"sqlite:{misspelt}"]) == 1
    assert capsys.readouterr().err == f"weir jobs: there is no job store {misspelt}\n"
    assert not misspelt.exists()
