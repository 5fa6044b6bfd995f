"""Jobs in Redis or Valkey: the store for several machines.

Owns the round trips; what is atomic happens in the scripts of `lua/`. Records and indexes lie under one hash
tag, bodies and answers under one per job, so that a Cluster spreads what is large. A body is written before
its job and an answer before the change that ends its job: a crash between the two leaves a blob that expires.
Durable as far as the server is: `warnings` tells what it lacks.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from proxy.core.clock import Clock, SystemClock
from proxy.jobs.changes import Accepted, BatchMove, Census, Committed, JobChange, JobQuery, Page, PoolSummary
from proxy.jobs.model import Answer, Batch, Booking, Group, Job, JobState, JobTier, Lease, LeaseKind
from proxy.jobs.records import decode_booking, encode
from proxy.jobs.remote import completions, reading
from proxy.jobs.remote.blobs import Blobs
from proxy.jobs.remote.client import ANSWER_SECONDS, RedisClient
from proxy.jobs.remote.listening import Listener
from proxy.jobs.remote.moving import moving_request, pack_request, raise_refusal, split_request
from proxy.jobs.remote.records import (
    batch_from_hash,
    change_request,
    job_fields,
    job_from_hash,
    lease_fields,
    pool_name,
    reset_request,
)
from proxy.jobs.sealing import PlainVault, Vault
from proxy.jobs.stepping import changes_in_steps, in_steps, joined
from proxy.jobs.store import Conflict, LeaseLost
from proxy.jobs.transitions import JobEvent, job_sources
from proxy.jobs.waiting import Waiting

_RECHECK_SECONDS = 5.0


class RedisStore:
    """A `JobStore` in Redis or Valkey.

    url                see `remote.client`
    namespace          several deployments may share a server, each under its own name
    retention_seconds  how long a job stays after its end
    vault              what bodies and answers go through
    """

    def __init__(
        self,
        url: str,
        clock: Clock | None = None,
        *,
        namespace: str = "weir",
        retention_seconds: float = 86_400.0,
        vault: Vault | None = None,
        answer_seconds: float = ANSWER_SECONDS,
    ) -> None:
        self._clock = clock or SystemClock()
        self._retention_seconds = retention_seconds
        self._prefix = f"weir:{{{namespace}}}:"
        self._client = RedisClient(url, answer_seconds)
        self._blobs = Blobs(self._client, namespace, vault or PlainVault())
        self._waiting = Waiting()
        self._listener = Listener(self._client, self._prefix, self._waiting)

    async def open(self) -> None:
        """See `JobStore`."""
        await self._client.open()

    async def close(self) -> None:
        """See `JobStore`."""
        await self._listener.stop()
        await self._client.close()

    async def warnings(self) -> tuple[str, ...]:
        """See `JobStore`."""
        found = await reading.warnings(self._client)
        strange = await self._blobs.unopenable(await reading.some_job_ids(self._client, self._prefix))
        return found if strange is None else (*found, strange)

    async def salt(self) -> bytes:
        """See `JobStore`."""
        key = f"{self._prefix}salt"
        _, salt = await self._client.pipeline([("SET", key, secrets.token_bytes(32), "NX"), ("GET", key)])
        return bytes(salt)

    async def _run(self, script: str, *arguments: str | bytes) -> Any:
        return await self._client.run(script, self._prefix, arguments)

    @property
    def _now(self) -> float:
        return self._clock.wall()

    # ---- callers

    async def accept(self, job: Job, body: bytes, *, attach: bool = True) -> Accepted:
        """See `JobStore`."""
        stays = max(job.deadline - self._now, 0.0) + self._retention_seconds
        job = replace(job, updated=self._now, purge_at=self._now + stays, body_bytes=len(body))
        await self._blobs.put_body(job.id, body, stays)
        fields = [part for pair in job_fields(job).items() for part in pair]
        now, retention = repr(self._now), repr(self._retention_seconds)
        outcome, raw_id = await self._run("accept", job.id, "1" if attach else "0", now, retention, *fields)
        if outcome == b"new":
            return Accepted(job, is_new=True)
        job_id = raw_id.decode()
        if job_id != job.id:
            await self._blobs.drop([job.id], [])
        found = await self.get(job_id)
        if found is not None and job_id != job.id:
            await self._blobs.keep_body(job_id, max(1.0, found.purge_at - self._now))
        # Deleted in this very moment: what counts is that it was known.
        return Accepted(found or job, is_new=job_id == job.id)

    async def get(self, job_id: str, owner: str | None = None) -> Job | None:
        """See `JobStore`."""
        found = await reading.jobs_by_id(self._client, self._prefix, (job_id,))
        return found[0] if found and owner in (None, found[0].owner) else None

    async def jobs(self, job_ids: Sequence[str]) -> tuple[Job, ...]:
        """See `JobStore`."""
        return await reading.jobs_by_id(self._client, self._prefix, job_ids)

    async def bodies(self, job_ids: Sequence[str]) -> dict[str, bytes]:
        """See `JobStore`."""
        return await self._blobs.bodies(job_ids)

    async def answer(self, job_id: str) -> Answer | None:
        """See `JobStore`."""
        (key,) = await self._client.pipeline([("HGET", f"{self._prefix}job:{job_id}", "answer_key")])
        return None if key is None else await self._blobs.answer(key.decode(), job_id)

    async def list_jobs(self, query: JobQuery) -> Page:
        """See `JobStore`."""
        return await reading.list_jobs(self._client, self._prefix, query)

    async def wait(self, job_id: str, timeout_seconds: float) -> Job | None:
        """See `JobStore`."""
        self._listener.start()
        return await self._waiting.until_ended(
            job_id, lambda: self.get(job_id), timeout_seconds, _RECHECK_SECONDS
        )

    async def leave(self, job_id: str) -> None:
        """See `JobStore`."""
        await self._run("leave", job_id)

    async def cancel(self, job_id: str, *, if_unwanted: bool = False) -> Job:
        """See `JobStore`."""
        request = self._request(JobChange(JobEvent.CANCEL, (job_id,)))
        before, _ = await self._move_one(request | {"if_unwanted": if_unwanted})
        return before

    async def deliver(self, job_id: str) -> Job:
        """See `JobStore`."""
        try:
            _, job = await self._move_one(self._request(JobChange(JobEvent.DELIVER, (job_id,))))
        except Conflict as conflict:
            if conflict.state is not JobState.DELIVERED:
                raise
            return (await self.jobs((job_id,)))[0]
        return job

    async def reset(self, job_id: str, *, tier: JobTier, due: float, deadline: float) -> Job:
        """See `JobStore`."""
        job = await self.get(job_id)
        if job is not None and job.state in job_sources(JobEvent.RESET):
            if job.is_borrowing:
                raise Conflict("the caller's credential was erased when the job ended", job.state)
            stays = max(deadline - self._now, 0.0) + self._retention_seconds
            if not await self._blobs.keep_body(job_id, stays):
                raise Conflict("the body of the job is erased", job.state)
        change = JobChange(JobEvent.RESET, (job_id,), due=due, ready=self._now, tier=tier)
        purge_at = max(deadline, self._now) + self._retention_seconds
        _, job = await self._move_one(reset_request(change, self._now, deadline, purge_at))
        return job

    async def delete(self, job_id: str) -> bool:
        """See `JobStore`."""
        return bool(await self._drop(job_id, 1))

    async def purge(self, limit: int = 1000) -> int:
        """See `JobStore`."""
        return await self._drop("", limit)

    async def _drop(self, job_id: str, limit: int) -> int:
        gone = await self._run("delete", job_id, repr(self._now), str(limit))
        job_ids = [raw[4:].decode() for raw, _ in gone if raw.startswith(b"job:")]
        await self._blobs.drop(job_ids, [key.decode() for _, key in gone])
        return len(gone)

    # ---- workers

    async def claim_jobs(
        self, worker: str, lease_seconds: float, limit: int, tiers: frozenset[JobTier] | None = None
    ) -> tuple[Job, ...]:
        """See `JobStore`."""
        indexes = [f"due:{tier.value}" for tier in (JobTier if tiers is None else tiers)]
        found = await self._claim("job", worker, lease_seconds, limit, indexes)
        return tuple(job_from_hash(fields) for fields in found)

    async def claim_batches(self, worker: str, lease_seconds: float, limit: int) -> tuple[Batch, ...]:
        """See `JobStore`."""
        found = await self._claim("batch", worker, lease_seconds, limit, ["batch_due"])
        return tuple(batch_from_hash(fields) for fields in found)

    async def _claim(
        self, kind: str, worker: str, lease_seconds: float, limit: int, indexes: Sequence[str]
    ) -> list[Mapping[bytes, bytes]]:
        now = self._now
        arguments = (repr(now), repr(now + lease_seconds), worker, str(limit))
        return [_hash(flat) for flat in await self._run("claim", kind, *arguments, *indexes)]

    async def claim_job(self, job_id: str, worker: str, lease_seconds: float) -> Job | None:
        """See `JobStore`."""
        now = self._now
        flat = await self._run("claim_one", job_id, repr(now), repr(now + lease_seconds), worker)
        return job_from_hash(_hash(flat)) if flat else None

    async def claim_role(self, role: str, worker: str, lease_seconds: float) -> Lease | None:
        """See `JobStore`."""
        until = self._now + lease_seconds
        token = await self._run("claim_role", role, repr(self._now), repr(until), worker)
        return Lease(LeaseKind.ROLE, role, worker, token, until) if token else None

    async def renew(self, lease: Lease, lease_seconds: float) -> Lease:
        """See `JobStore`."""
        until = self._now + lease_seconds
        if not await self._set_lease(lease, repr(until), ""):
            raise LeaseLost(f"the {lease.kind.value} {lease.subject} belongs to somebody else by now")
        return replace(lease, until=until)

    async def release(self, lease: Lease, due: float | None = None) -> None:
        """See `JobStore`."""
        await self._set_lease(lease, "0", "" if due is None else repr(due))

    async def _set_lease(self, lease: Lease, until: str, due: str) -> bool:
        holder = (lease.kind.value, lease.subject, str(lease.token), lease.worker)
        return bool(await self._run("lease", *holder, until, due))

    async def beats(self, worker: str, *, is_leaving: bool = False) -> Mapping[str, float]:
        """See `JobStore`. The server's clock stands for everybody's."""
        return {"the store's server": await self._client.time()}

    async def wait_for_work(self, timeout_seconds: float) -> bool:
        """See `JobStore`."""
        self._listener.start()
        return await self._waiting.work(timeout_seconds)

    async def commit_job(self, lease: Lease, change: JobChange) -> Job:
        """See `JobStore`."""
        keys = await self._put_answers((change,))
        request = self._request(replace(change, job_ids=(lease.subject,)), keys.get(lease.subject))
        if change.due is not None:
            request["set"].setdefault("until", "0")
        _, job = await self._move_one(request, lease)
        return job

    def _request(self, change: JobChange, answer_key: str | None = None) -> dict[str, Any]:
        return change_request(change, self._now, self._retention_seconds, answer_key)

    async def _move_one(self, request: dict[str, Any], lease: Lease | None = None) -> tuple[Job, Job]:
        asked: dict[str, Any] = {"changes": [request]}
        if lease is not None:
            asked["job_lease"] = lease_fields(lease)
        status, *rest = await self._run("move", json.dumps(asked))
        raise_refusal(status, rest, lease)
        _, refused, _, before, after = rest
        if refused:
            state = JobState(refused[1].decode()) if refused[1] else None
            raise Conflict("there is no such job" if state is None else f"the job is {state.value}", state)
        return job_from_hash(_hash(before)), job_from_hash(_hash(after))

    async def _put_answers(self, changes: Sequence[JobChange]) -> dict[str, str]:
        answers = [(change.job_ids[0], change.answer) for change in changes if change.answer is not None]
        return await self._blobs.put_answers(answers, self._retention_seconds) if answers else {}

    async def claim_notices(
        self, worker: str, lease_seconds: float, limit: int, busy: frozenset[str] = frozenset()
    ) -> tuple[Job, ...]:
        """See `JobStore`."""
        now = self._now
        arguments = (repr(now), repr(now + lease_seconds), worker, str(limit), *sorted(busy))
        return tuple(job_from_hash(_hash(flat)) for flat in await self._run("claim_notices", *arguments))

    async def noted(self, lease: Lease, due: float | None, note: str, *, is_try: bool) -> None:
        """See `JobStore`."""
        again = "" if due is None else repr(due)
        await self._run("noted", lease.subject, str(lease.token), lease.worker, again, note, str(int(is_try)))

    # ---- batches

    async def pools(self) -> tuple[PoolSummary, ...]:
        """See `JobStore`."""
        return await reading.pools(self._client, self._prefix)

    async def candidates(self, group: Group, limit: int) -> tuple[Job, ...]:
        """See `JobStore`."""
        ids = await self._run("candidates", pool_name(group), repr(self._now), str(limit))
        return await self.jobs([raw.decode() for raw in ids])

    async def pack(
        self, batch: Batch, job_ids: Sequence[str], worker: str, lease_seconds: float
    ) -> Batch | None:
        """See `JobStore`."""
        packed = None
        request = pack_request(batch, worker, lease_seconds, self._now)
        for ids in in_steps(job_ids):
            status, *rest = await self._run("pack", json.dumps(request | {"ids": ids}))
            if status == b"lost":
                raise LeaseLost(f"the batch {batch.id} belongs to somebody else by now")
            packed = batch_from_hash(_hash(rest[0])) if rest[0] else None
        return packed

    async def split(self, lease: Lease, parts: Sequence[tuple[Batch, Sequence[str]]]) -> tuple[Batch, ...]:
        """See `JobStore`."""
        request = split_request(lease, parts, self._now, self._retention_seconds)
        status, *rest = await self._run("split", json.dumps(request))
        raise_refusal(status, rest, lease)
        return tuple(batch_from_hash(_hash(flat)) for flat in rest[0])

    async def batch(self, batch_id: str) -> Batch | None:
        """See `JobStore`."""
        (fields,) = await self._client.pipeline([("HGETALL", f"{self._prefix}batch:{batch_id}")])
        return batch_from_hash(fields) if fields else None

    async def batch_job_ids(self, batch_id: str, *, only_open: bool = False) -> tuple[str, ...]:
        """See `JobStore`."""
        members, still = await self._client.pipeline(
            [
                ("LRANGE", f"{self._prefix}members:{batch_id}", 0, -1),
                ("SMEMBERS", f"{self._prefix}open:{batch_id}"),
            ]
        )
        open_ids = set(still)
        return tuple(raw.decode() for raw in members if not only_open or raw in open_ids)

    async def commit_batch(
        self, lease: Lease, move: BatchMove | None = None, changes: Sequence[JobChange] = ()
    ) -> Committed:
        """See `JobStore`."""
        done = None
        for some, is_last in changes_in_steps(changes):
            done = joined(done, await self._commit_some(lease, move if is_last else None, some))
        assert done is not None
        return done

    async def _commit_some(
        self, lease: Lease, move: BatchMove | None, changes: Sequence[JobChange]
    ) -> Committed:
        keys = await self._put_answers(changes)
        request = moving_request(lease, move, changes, keys, self._now, self._retention_seconds)
        status, *rest = await self._run("move", json.dumps(request))
        raise_refusal(status, rest, lease)
        applied, refused, batch, _, _ = rest
        states = zip(refused[::2], refused[1::2], strict=True)
        return Committed(
            batch_from_hash(_hash(batch)),
            tuple(raw.decode() for raw in applied),
            {raw.decode(): JobState(state.decode()) if state else None for raw, state in states},
        )

    # ---- figures

    async def book(self, booking: Booking) -> bool:
        """See `JobStore`."""
        return bool(await self._run("book", booking.job_id, booking.key, encode(booking)))

    async def bookings(self, job_id: str) -> tuple[Booking, ...]:
        """See `JobStore`."""
        (found,) = await self._client.pipeline([("HGETALL", f"{self._prefix}book:{job_id}")])
        return tuple(decode_booking(text) for _, text in sorted(found.items()))

    async def census(self) -> Census:
        """See `JobStore`."""
        return await reading.census(self._client, self._prefix)

    async def observe_completion(self, upstream: str, model: str, tier: JobTier, seconds: float) -> None:
        """See `JobStore`."""
        await completions.observe(self._client, self._prefix, upstream, model, tier, seconds)

    async def completions(self, upstream: str, model: str, tier: JobTier) -> tuple[float, ...]:
        """See `JobStore`."""
        return await completions.observed(self._client, self._prefix, upstream, model, tier)


def _hash(flat: Sequence[bytes]) -> dict[bytes, bytes]:
    return dict(zip(flat[::2], flat[1::2], strict=True))
