"""Pools to batches: looks at what waits, decides what is to be sent, and packs it.

Owns the role that one worker at a time plays, so that a pool is not torn apart by several. How full or how
old a pool has to be says the route of its jobs; the strictest wish of those that wait longest counts.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Sequence
from functools import partial

from proxy.jobs.changes import JobChange, PoolSummary
from proxy.jobs.model import Batch, Group, Job, JobError
from proxy.jobs.packing import BatchLimits, FlushRule, flush_reason, plan
from proxy.jobs.store import Conflict, LeaseLost
from proxy.jobs.tiers import after_miss
from proxy.jobs.transitions import JobEvent
from proxy.jobs.worker.kit import Kit
from proxy.jobs.worker.ports import Trouble
from proxy.upstream.providers.batch_api import (
    BatchApi,
    BatchApiError,
    CredentialsRefused,
    Unsupported,
)

ROLE = "packer"
_LOOKED_AT = 200

Spawn = Callable[[Batch], None]
"""Begins the work on a batch that was packed and is leased to this worker."""


class Packer:
    """Packs for one worker; `spawn` begins the work on a new batch."""

    def __init__(self, kit: Kit, spawn: Spawn) -> None:
        self._kit = kit
        self._spawn = spawn
        self._next_creation: dict[tuple[str, str], float] = {}
        self._wishes: dict[Group, tuple[tuple[int, float], FlushRule, int]] = {}

    async def pack(self, most_batches: int) -> int:
        """Pack what is to be sent now, at most so many batches; returns how many. Needs the role."""
        kit = self._kit
        packed = 0
        pools = await kit.insist(kit.store.pools)
        self._wishes = {pool.group: self._wishes[pool.group] for pool in pools if pool.group in self._wishes}
        for pool in pools:
            if packed >= most_batches:
                break
            account = (pool.group.upstream, pool.group.account)
            if pool.oldest <= kit.now() and self._next_creation.get(account, 0.0) <= kit.now():
                packed += await self._look(pool, most_batches - packed)
        return packed

    async def _look(self, pool: PoolSummary, most_batches: int) -> int:
        kit = self._kit
        rule, min_jobs = await self._wish(pool)
        first = await kit.insist(lambda: kit.store.candidates(pool.group, 1))
        if not first:
            return 0
        try:
            api = kit.providers.batch_api_for(first[0])
        except CredentialsRefused as problem:
            # Its credential does not open; those of other jobs of this payer may.
            await self._send_elsewhere(first, str(problem))
            return 0
        except Unsupported as problem:
            await self._send_elsewhere(await self._candidates(pool, kit.settings.batch_jobs), str(problem))
            return 0
        except BatchApiError:
            return 0  # the upstream is not configured now: each job is rescued in time
        limits = _limits(api, kit.settings.batch_jobs)
        why = flush_reason(pool, rule, limits, kit.now())
        if why is None:
            return 0
        # No more than one batch may hold: who packs ten thousand jobs in one go dies before it is done.
        jobs = await self._candidates(pool, limits.jobs)
        if why == "age" and len(jobs) < min_jobs:
            await self._send_elsewhere(jobs, "too few jobs to make a batch")
            return 0
        return await self._send(pool.group, api, jobs, limits, most_batches)

    async def _wish(self, pool: PoolSummary) -> tuple[FlushRule, int]:
        """Return by which rule a pool is sent, and how many jobs make a batch."""
        known = self._wishes.get(pool.group)
        seen = (pool.jobs, pool.oldest)
        if known is not None and known[0] == seen:
            return known[1], known[2]
        jobs = await self._candidates(pool, _LOOKED_AT)
        rules = [(job, self._kit.directory.rules(job.route)) for job in jobs]
        flush_at = min(
            (max(job.ready, job.created) + rule.flush_after_seconds for job, rule in rules),
            default=pool.oldest,
        )
        flush = FlushRule(
            min((rule.flush_jobs for _, rule in rules), default=1), max(0.0, flush_at - pool.oldest)
        )
        min_jobs = min((rule.min_jobs for _, rule in rules), default=1)
        self._wishes[pool.group] = (seen, flush, min_jobs)
        return flush, min_jobs

    async def _candidates(self, pool: PoolSummary, most: int) -> tuple[Job, ...]:
        return await self._kit.insist(lambda: self._kit.store.candidates(pool.group, most))

    async def _send(
        self, group: Group, api: BatchApi, jobs: Sequence[Job], limits: BatchLimits, most_batches: int
    ) -> int:
        kit = self._kit
        planned = plan(jobs, limits, api.line_url(group.endpoint))
        by_id = {job.id: job for job in jobs}
        if planned.too_large:
            await self._send_elsewhere(
                [by_id[job_id] for job_id in planned.too_large], "too large for a batch"
            )
        sent = 0
        for ids in planned.batches[:most_batches]:
            payer = by_id[ids[0]]
            batch = Batch(
                uuid.uuid4().hex,
                group,
                kit.now(),
                is_borrowing=payer.is_borrowing,
                credential=payer.credential,
                due=kit.now(),
            )
            packed = await kit.insist(
                partial(kit.store.pack, batch, ids, kit.settings.name, kit.settings.lease_seconds)
            )
            if packed is not None:
                sent += 1
                self._spawn(packed)
        if sent:
            account = (group.upstream, group.account)
            self._next_creation[account] = kit.now() + api.limits.gap_seconds * sent
        return sent

    async def _send_elsewhere(self, jobs: Iterable[Job], why: str) -> None:
        """Give jobs that no batch takes to their next tier."""
        kit = self._kit
        settings = kit.settings
        for job in jobs:
            held = await kit.insist(
                partial(kit.store.claim_job, job.id, settings.name, settings.lease_seconds)
            )
            if held is None or held.lease is None:
                continue
            p95 = await kit.p95_seconds(job.upstream, job.model)
            to = after_miss(held.tiers, p95, held.deadline - kit.now())
            change = JobChange(
                JobEvent.RETURN,
                (job.id,),
                due=kit.now(),
                tier=to.tier,
                tiers=to.left,
                error=JobError("not_batched", why),
            )
            try:
                await kit.commit(held.lease, change)
            except (Conflict, LeaseLost):
                kit.watch.trouble(Trouble.LEASE_LOST, job.upstream)


def _limits(api: BatchApi, most_jobs: int) -> BatchLimits:
    given = api.limits
    return BatchLimits(min(given.jobs, most_jobs), given.bytes, given.tokens, given.line_bytes)
