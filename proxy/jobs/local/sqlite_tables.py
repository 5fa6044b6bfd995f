"""Tables in an sqlite file, used inside of a transaction and one thread. Owns the statements and no rule."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Sequence

from proxy.jobs.attaching import attach_order
from proxy.jobs.changes import Census, JobQuery, Page, PoolSummary
from proxy.jobs.model import (
    LIVE_JOB_STATES,
    Answer,
    Batch,
    BatchState,
    Booking,
    Group,
    Job,
    JobState,
    JobTier,
    Lease,
)
from proxy.jobs.paging import cursor_after, read_cursor
from proxy.jobs.records import (
    decode_answer,
    decode_batch,
    decode_booking,
    decode_job,
    decode_lease,
    encode,
    encode_answer,
)
from proxy.jobs.sealing import NAMING_BYTES, Vault
from proxy.jobs.store import BEAT_KEPT_SECONDS, MAX_COMPLETIONS

_PUT_JOB = """
INSERT INTO jobs VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (id) DO UPDATE SET
    state = excluded.state, tier = excluded.tier, due = excluded.due, ready = excluded.ready,
    lease_until = excluded.lease_until, batch_id = excluded.batch_id, purge_at = excluded.purge_at,
    document = excluded.document, attach_order = excluded.attach_order, notice_due = excluded.notice_due
"""
_PUT_BATCH = """
INSERT INTO batches VALUES (?, ?, ?, ?, ?, ?)
ON CONFLICT (id) DO UPDATE SET
    state = excluded.state, due = excluded.due, lease_until = excluded.lease_until,
    purge_at = excluded.purge_at, document = excluded.document
"""
_DUE_JOBS = """
SELECT document FROM jobs WHERE due <= ? AND due < 9999999999.0 AND lease_until <= ?
    AND tier IN (SELECT value FROM json_each(?))
ORDER BY due, id LIMIT ?
"""
_DUE_NOTICES = """
SELECT document FROM jobs WHERE notice_due <= ? AND lease_until <= ?
    AND webhook NOT IN (SELECT value FROM json_each(?))
ORDER BY notice_due, id LIMIT ?
"""
_DUE_BATCHES = """
SELECT document FROM batches WHERE due <= ? AND due < 9999999999.0 AND lease_until <= ?
ORDER BY due, id LIMIT ?
"""
_POOL = """
SELECT document FROM jobs WHERE state = 'accepted' AND tier = 'batch' AND pool = ? AND ready <= ?
    AND lease_until <= ? ORDER BY ready, id LIMIT ?
"""
_POOLS = """
SELECT pool, count(*), sum(body_bytes), sum(input_tokens), min(ready) FROM jobs
WHERE state = 'accepted' AND tier = 'batch' GROUP BY pool ORDER BY pool
"""
_OPEN_MEMBERS = """
SELECT members.job_id FROM members JOIN jobs ON jobs.id = members.job_id
WHERE members.batch_id = ? AND jobs.batch_id = members.batch_id ORDER BY members.position
"""
_FORGET_COMPLETIONS = """
DELETE FROM completions WHERE upstream = ?1 AND model = ?2 AND tier = ?3 AND number <= (
    SELECT number FROM completions WHERE upstream = ?1 AND model = ?2 AND tier = ?3
    ORDER BY number DESC LIMIT 1 OFFSET ?4)
"""
_ATTACHED = """
SELECT document FROM jobs WHERE attach_key = ? AND attach_order IS NOT NULL
ORDER BY attach_order, created, id LIMIT 1
"""
_ALL_TIERS = json.dumps([tier.value for tier in JobTier])
_LIVE = json.dumps([state.value for state in LIVE_JOB_STATES])


class SqliteTables:
    """Tables over one connection. Bodies and answers go through the vault."""

    def __init__(self, connection: sqlite3.Connection, vault: Vault) -> None:
        self._run = connection.execute
        self._run_many = connection.executemany
        self._vault = vault

    def _one(self, statement: str, *values: object) -> bytes | None:
        row = self._run(statement, values).fetchone()
        return None if row is None else row[0]

    def writers(self) -> int:
        """Return a number that changes whenever another connection has written."""
        return int(self._run("PRAGMA data_version").fetchone()[0])

    def job(self, job_id: str) -> Job | None:
        """See `Tables`."""
        document = self._one("SELECT document FROM jobs WHERE id = ?", job_id)
        return None if document is None else decode_job(document)

    def put_job(self, job: Job) -> None:
        """See `Tables`."""
        columns = (
            *(job.id, job.attach_key, job.owner, job.group.key, job.upstream, job.created),
            *(job.body_bytes, job.input_tokens, job.state.value, job.tier.value, job.due, job.ready),
            *(_until(job.lease), job.batch_id, job.purge_at, encode(job), attach_order(job)),
            *(job.webhook, job.notice_due),
        )
        self._run(_PUT_JOB, columns)

    def drop_job(self, job_id: str) -> None:
        """See `Tables`."""
        self._run("DELETE FROM jobs WHERE id = ?", (job_id,))
        for table in ("bodies", "answers", "bookings"):
            self._run(f"DELETE FROM {table} WHERE job_id = ?", (job_id,))

    def attached(self, attach_key: str) -> Job | None:
        """See `Tables`."""
        document = self._one(_ATTACHED, attach_key)
        return None if document is None else decode_job(document)

    def body(self, job_id: str) -> bytes | None:
        """See `Tables`."""
        blob = self._one("SELECT body FROM bodies WHERE job_id = ?", job_id)
        return None if blob is None else self._vault.open(blob, job_id)

    def put_body(self, job_id: str, body: bytes) -> None:
        """See `Tables`."""
        self._run("INSERT OR REPLACE INTO bodies VALUES (?, ?)", (job_id, self._vault.seal(body, job_id)))

    def answer(self, job_id: str) -> Answer | None:
        """See `Tables`."""
        blob = self._one("SELECT answer FROM answers WHERE job_id = ?", job_id)
        return None if blob is None else decode_answer(self._vault.open(blob, job_id))

    def put_answer(self, job_id: str, answer: Answer | None) -> None:
        """See `Tables`."""
        if answer is None:
            self._run("DELETE FROM answers WHERE job_id = ?", (job_id,))
            return
        blob = self._vault.seal(encode_answer(answer), job_id)
        self._run("INSERT OR REPLACE INTO answers VALUES (?, ?)", (job_id, blob))

    def due_jobs(self, now: float, tiers: frozenset[JobTier] | None, limit: int) -> list[Job]:
        """See `Tables`."""
        wanted = _ALL_TIERS if tiers is None else json.dumps([tier.value for tier in tiers])
        return [decode_job(row[0]) for row in self._run(_DUE_JOBS, (now, now, wanted, limit))]

    def due_notices(self, now: float, busy: frozenset[str], limit: int) -> list[Job]:
        """See `Tables`."""
        rows = self._run(_DUE_NOTICES, (now, now, json.dumps(sorted(busy)), limit))
        return [decode_job(row[0]) for row in rows]

    def pool(self, group: Group, now: float, limit: int) -> list[Job]:
        """See `Tables`."""
        return [decode_job(row[0]) for row in self._run(_POOL, (group.key, now, now, limit))]

    def pools(self) -> tuple[PoolSummary, ...]:
        """See `Tables`."""
        found = [PoolSummary(Group(*json.loads(pool)), *figures) for pool, *figures in self._run(_POOLS)]
        return tuple(sorted(found, key=lambda summary: summary.group))

    def list_jobs(self, query: JobQuery) -> Page:
        """See `Tables`."""
        conditions = ["1"]
        values: list[object] = []
        if query.states is not None:
            conditions.append("state IN (SELECT value FROM json_each(?))")
            values.append(json.dumps([state.value for state in query.states]))
        for column, wanted in (("upstream", query.upstream), ("owner", query.owner)):
            if wanted is not None:
                conditions.append(f"{column} = ?")
                values.append(wanted)
        if query.created_before is not None:
            conditions.append("created < ?")
            values.append(query.created_before)
        if query.cursor is not None:
            conditions.append("(created, id) < (?, ?)")
            values += read_cursor(query.cursor)
        statement = (
            f"SELECT document FROM jobs WHERE {' AND '.join(conditions)} "
            "ORDER BY created DESC, id DESC LIMIT ?"
        )
        found = [decode_job(row[0]) for row in self._run(statement, (*values, query.limit + 1))]
        page = tuple(found[: query.limit])
        return Page(page, cursor_after(page[-1]) if len(found) > query.limit else None)

    def ended_among(self, job_ids: Sequence[str]) -> list[str]:
        """See `Tables`."""
        rows = self._run(
            "SELECT asked.value FROM json_each(?) AS asked LEFT JOIN jobs ON jobs.id = asked.value "
            "WHERE jobs.id IS NULL OR jobs.state NOT IN (SELECT value FROM json_each(?))",
            (json.dumps(list(job_ids)), _LIVE),
        )
        return [row[0] for row in rows]

    def batch(self, batch_id: str) -> Batch | None:
        """See `Tables`."""
        document = self._one("SELECT document FROM batches WHERE id = ?", batch_id)
        return None if document is None else decode_batch(document)

    def put_batch(self, batch: Batch) -> None:
        """See `Tables`."""
        columns = (batch.id, batch.state.value, batch.due, _until(batch.lease), batch.purge_at, encode(batch))
        self._run(_PUT_BATCH, columns)

    def put_members(self, batch_id: str, first: int, job_ids: Iterable[str]) -> None:
        """See `Tables`."""
        rows = ((batch_id, position, job_id) for position, job_id in enumerate(job_ids, first))
        self._run_many("INSERT INTO members VALUES (?, ?, ?)", rows)

    def members(self, batch_id: str) -> tuple[str, ...]:
        """See `Tables`."""
        statement = "SELECT job_id FROM members WHERE batch_id = ? ORDER BY position"
        return tuple(row[0] for row in self._run(statement, (batch_id,)))

    def open_members(self, batch_id: str) -> tuple[str, ...]:
        """See `Tables`."""
        return tuple(row[0] for row in self._run(_OPEN_MEMBERS, (batch_id,)))

    def due_batches(self, now: float, limit: int) -> list[Batch]:
        """See `Tables`."""
        return [decode_batch(row[0]) for row in self._run(_DUE_BATCHES, (now, now, limit))]

    def role(self, role: str) -> Lease | None:
        """See `Tables`."""
        document = self._one("SELECT document FROM roles WHERE role = ?", role)
        return None if document is None else decode_lease(document)

    def put_role(self, lease: Lease) -> None:
        """See `Tables`."""
        self._run("INSERT OR REPLACE INTO roles VALUES (?, ?)", (lease.subject, encode(lease)))

    def add_booking(self, booking: Booking) -> bool:
        """See `Tables`."""
        values = (booking.job_id, booking.key, encode(booking))
        return self._run("INSERT OR IGNORE INTO bookings VALUES (?, ?, ?)", values).rowcount > 0

    def bookings(self, job_id: str) -> tuple[Booking, ...]:
        """See `Tables`."""
        statement = "SELECT document FROM bookings WHERE job_id = ? ORDER BY key"
        return tuple(decode_booking(row[0]) for row in self._run(statement, (job_id,)))

    def census(self) -> Census:
        """See `Tables`."""
        jobs = self._run("SELECT state, count(*), min(created) FROM jobs GROUP BY state").fetchall()
        batches = self._run("SELECT state, count(*) FROM batches GROUP BY state").fetchall()
        return Census(
            {JobState(state): count for state, count, _ in jobs},
            {JobState(state): oldest for state, _, oldest in jobs},
            {BatchState(state): count for state, count in batches},
        )

    def add_completion(self, upstream: str, model: str, tier: JobTier, seconds: float, now: float) -> None:
        """See `Tables`."""
        subject = (upstream, model, tier.value)
        self._run(
            "INSERT INTO completions (upstream, model, tier, seconds, noted) VALUES (?, ?, ?, ?, ?)",
            (*subject, seconds, now),
        )
        self._run(_FORGET_COMPLETIONS, (*subject, MAX_COMPLETIONS))

    def completions(self, upstream: str, model: str, tier: JobTier) -> tuple[float, ...]:
        """See `Tables`."""
        statement = (
            "SELECT seconds FROM completions WHERE upstream = ? AND model = ? AND tier = ? "
            "ORDER BY number DESC"
        )
        return tuple(row[0] for row in self._run(statement, (upstream, model, tier.value)))

    def purge(self, now: float, limit: int) -> list[str]:
        """See `Tables`."""
        statement = "SELECT id FROM jobs WHERE purge_at <= ? LIMIT ?"
        jobs = [row[0] for row in self._run(statement, (now, limit)).fetchall()]
        for job_id in jobs:
            self.drop_job(job_id)
        statement = "SELECT id FROM batches WHERE purge_at <= ? LIMIT ?"
        batches = [row[0] for row in self._run(statement, (now, limit - len(jobs))).fetchall()]
        for batch_id in batches:
            self._run("DELETE FROM batches WHERE id = ?", (batch_id,))
            self._run("DELETE FROM members WHERE batch_id = ?", (batch_id,))
        self._run("DELETE FROM facts WHERE name GLOB 'beat:*' AND value < ?", (now - BEAT_KEPT_SECONDS,))
        return jobs + batches

    def beats(self, worker: str, now: float | None) -> dict[str, float]:
        """See `Tables`."""
        own = f"beat:{worker}"
        if now is None:
            self._run("DELETE FROM facts WHERE name = ?", (own,))
        else:
            self._run("INSERT OR REPLACE INTO facts VALUES (?, ?)", (own, now))
        found = self._run("SELECT name, value FROM facts WHERE name GLOB 'beat:*' AND name <> ?", (own,))
        return {name.removeprefix("beat:"): float(value) for name, value in found}

    def beginnings(self, limit: int) -> list[bytes]:
        """Return how the newest and the oldest bodies and answers begin: which keys they need."""
        found: list[bytes] = []
        for column, table in (("body", "bodies"), ("answer", "answers")):
            for order in ("ASC", "DESC"):
                statement = f"SELECT substr({column}, 1, ?) FROM {table} ORDER BY rowid {order} LIMIT ?"
                found += [bytes(raw) for (raw,) in self._run(statement, (NAMING_BYTES, limit))]
        return found

    def salt(self, fresh: bytes) -> bytes:
        """See `Tables`."""
        self._run("INSERT OR IGNORE INTO facts VALUES ('salt', ?)", (fresh,))
        return bytes(self._one("SELECT value FROM facts WHERE name = 'salt'") or b"")


def _until(lease: Lease | None) -> float:
    return 0.0 if lease is None else lease.until
