"""Jobs that were stored under another key fail with that reason; nothing is sent and nothing is booked."""

from __future__ import annotations

import asyncio
import logging
import secrets
from pathlib import Path

import pytest

from proxy.core.upstream import Secret
from proxy.jobs.model import JobState, JobTier
from proxy.jobs.sealing import SecretVault
from proxy.jobs.sqlite_store import SqliteStore
from proxy.jobs.worker.ports import Trouble
from tests.support.job_worker import body_of, new_job, rig


async def _opened(path: Path, vault: SecretVault) -> SqliteStore:
    store = SqliteStore(path, vault=vault)
    await store.open()
    return store


def _vault() -> SecretVault:
    return SecretVault([Secret(secrets.token_urlsafe(32))])


@pytest.mark.parametrize("tier", [JobTier.BATCH, JobTier.FLEX, JobTier.DIRECT])
def test_a_body_under_another_key_fails_its_job_without_a_call(
    tier: JobTier, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        lost = new_job(tier=tier)
        former = await _opened(tmp_path / "jobs.db", _vault())
        await former.accept(lost, body_of(lost))
        await former.close()
        store = await _opened(tmp_path / "jobs.db", _vault())
        async with rig(store=store) as r:
            fine = await r.accept(tier=tier)
            ended = await r.ended(lost)
            assert ended.state is JobState.FAILED
            assert ended.error is not None
            assert ended.error.code == "body_unreadable"
            assert "WEIR_SECRET_KEY" in ended.error.message
            assert await store.bookings(lost.id) == ()
            assert (await r.answer(fine)).status == 200
            assert await r.executions(fine) == 1
            assert [job.id for job in r.watch.endings if job.ended_as is JobState.FAILED] == [lost.id]
            assert Trouble.INTERNAL not in r.watch.troubles
        await store.close()

    asyncio.run(scenario())
    assert [record for record in caplog.records if record.levelno >= logging.ERROR] == []


def test_a_start_under_another_key_names_both_keys(tmp_path: Path) -> None:
    async def scenario() -> None:
        vault, other = _vault(), _vault()
        store = await _opened(tmp_path / "jobs.db", vault)
        job = new_job()
        await store.accept(job, body_of(job))
        assert await store.warnings() == ()
        await store.close()
        store = await _opened(tmp_path / "jobs.db", other)
        (said,) = await store.warnings()
        assert vault.key_ids()[0] in said
        assert other.key_ids()[0] in said
        await store.close()

    asyncio.run(scenario())
