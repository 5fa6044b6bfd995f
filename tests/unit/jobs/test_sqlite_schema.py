"""A file that an older release of Weir has written is brought up to date with everything that it holds."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from pathlib import Path

from proxy.core.clock import ManualClock
from proxy.jobs.local.sqlite_schema import MIGRATIONS
from proxy.jobs.model import Delivery, JobState, JobTier
from proxy.jobs.records import encode
from proxy.jobs.sqlite_store import SqliteStore
from tests.support.jobs import BODY, Bench, new_job

BEFORE_NOTICES = 2
NEWER_FIELDS = ("webhook", "notice_due", "notice_tries", "notice_note")


def written_before_notices(path: Path, bench: Bench) -> tuple[str, str]:
    """Make a file as the release before webhooks left it; return the ids of a live and an ended job."""
    connection = sqlite3.connect(path)
    for migration in MIGRATIONS[:BEFORE_NOTICES]:
        connection.executescript(migration)
    connection.execute(f"PRAGMA user_version = {BEFORE_NOTICES}")
    live = new_job(bench, delivery=Delivery.TICKET, tier=JobTier.DIRECT, due=bench.now)
    over = new_job(bench, state=JobState.SUCCEEDED, ended_as=JobState.SUCCEEDED, ended=bench.now)
    for job in (live, over):
        document = {
            name: value for name, value in json.loads(encode(job)).items() if name not in NEWER_FIELDS
        }
        columns = (
            *(job.id, job.attach_key, job.owner, job.group.key, job.upstream, job.created),
            *(job.body_bytes, job.input_tokens, job.state.value, job.tier.value, job.due, job.ready),
            *(0.0, None, job.purge_at, json.dumps(document).encode(), 1),
        )
        connection.execute(f"INSERT INTO jobs VALUES ({', '.join('?' * len(columns))})", columns)
    connection.commit()
    connection.close()
    return live.id, over.id


def test_jobs_from_before_webhooks_are_all_there_and_tell_nobody(tmp_path: Path) -> None:
    async def test() -> None:
        bench = Bench("sqlite", tmp_path, None, ManualClock())
        live, over = written_before_notices(tmp_path / "jobs.db", bench)
        store = SqliteStore(tmp_path / "jobs.db", bench.clock)
        await store.open()
        for job_id in (live, over):
            job = await store.get(job_id)
            assert job is not None
            assert (job.webhook, job.notice_due, job.notice_tries, job.notice_note) == ("", None, 0, "")
        await store.cancel(live)
        assert await store.claim_notices("w", 60.0, 10) == ()
        wished = (await store.accept(new_job(bench, webhook="ops"), BODY)).job
        await store.cancel(wished.id)
        assert [job.id for job in await store.claim_notices("w", 60.0, 10)] == [wished.id]
        await store.close()

    asyncio.run(test())
