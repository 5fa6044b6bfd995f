"""What every step of the worker works with: store, clock, providers, prices; and patience with the store.

Owns the rule that what is known is written: a commit is repeated until the store takes it, refuses it, or the
work is taken away. `StoreUnavailable` says that repeating is safe.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import TypeVar

from proxy.core.clock import Clock
from proxy.core.price import Price
from proxy.jobs.changes import BatchMove, Committed, JobChange
from proxy.jobs.model import LIVE_JOB_STATES, Batch, Booking, Job, JobTier, Lease
from proxy.jobs.store import JobStore, LeaseLost, StoreUnavailable
from proxy.jobs.tiers import (
    PRICE_TIERS,
    backoff_seconds,
    offers_of,
    p95,
    rescue_window,
    spread_rescue_at,
)
from proxy.jobs.worker.ports import Directory, Prices, Trouble, Watch, WorkerSettings
from proxy.jobs.worker.providers import Providers
from proxy.jobs.worker.turns import Turns
from proxy.webhooks.sender import Sender

_T = TypeVar("_T")
_STORE_FIRST_SECONDS = 0.1
_STORE_MOST_SECONDS = 2.0
_BEATS_PER_LEASE = 3

Sleep = Callable[[float], Awaitable[None]]


class Kit:
    """The tools of one worker. `draw` gives numbers from 0 to 1, for jitter; `sender` tells webhooks."""

    def __init__(
        self,
        store: JobStore,
        clock: Clock,
        settings: WorkerSettings,
        directory: Directory,
        providers: Providers,
        prices: Prices,
        watch: Watch,
        draw: Callable[[], float],
        sleep: Sleep = asyncio.sleep,
        sender: Sender | None = None,
    ) -> None:
        self.store = store
        self.settings = settings
        self.directory = directory
        self.providers = providers
        self.prices = prices
        self.watch = watch
        self.sleep = sleep
        self.sender = sender
        self.turns = Turns()
        self._clock = clock
        self._draw = draw
        self._paces: dict[tuple[str, str], tuple[float, dict[JobTier, float]]] = {}
        self._live_jobs = (0.0, 0)

    def now(self) -> float:
        """Return seconds since the epoch."""
        return self._clock.wall()

    def monotonic(self) -> float:
        """Return seconds from an arbitrary start."""
        return self._clock.monotonic()

    def backoff(self, failures: int) -> float:
        """Return how long to leave a provider alone after so many failures in a row."""
        settings = self.settings
        return backoff_seconds(
            failures, settings.backoff_seconds, settings.backoff_most_seconds, self._draw()
        )

    def next_poll(self, age_seconds: float) -> float:
        """Return when to look again at what a provider has worked on for so long: a tenth of it, jittered."""
        settings = self.settings
        full = min(settings.poll_most_seconds, max(settings.poll_seconds, age_seconds / 10))
        return self.now() + full * (0.8 + 0.4 * self._draw())

    def price(self, upstream: str, model: str) -> Price | None:
        """Return what a model costs at an upstream."""
        return self.prices.price(self.providers.provider_of(upstream), model)

    async def p95_seconds(self, upstream: str, model: str) -> dict[JobTier, float]:
        """Return until when 95 of 100 answers are there, for the tiers that the provider has."""
        known = self._paces.get((upstream, model))
        if known is not None and self._clock.monotonic() < known[0]:
            return known[1]
        offers = offers_of(self.prices, self.providers.provider_of(upstream))
        figures: dict[JobTier, float] = {}
        for tier in PRICE_TIERS:
            if tier in offers or tier is JobTier.DIRECT:
                seen = await self.insist(partial(self.store.completions, upstream, model, tier))
                figures[tier] = p95(seen, offers.get(tier))
        until = self._clock.monotonic() + self.settings.pace_lifetime_seconds
        self._paces[(upstream, model)] = (until, figures)
        return figures

    async def rescue_time(self, job: Job, *, many: int | None = None, since: float | None = None) -> float:
        """Return when the direct call for a job begins, each of `many` (all live jobs) in its turn.

        The cheaper tier had the job since it was created, or `since`.
        """
        direct = (await self.p95_seconds(job.upstream, job.model))[JobTier.DIRECT]
        jobs = await self.live_jobs() if many is None else many
        window = rescue_window(jobs, direct, self.settings.calls, self.most_calls(job.upstream))
        begun = job.created if since is None else since
        return spread_rescue_at(job.id, job.wanted_by, direct, window, begun)

    def most_calls(self, upstream: str) -> int:
        """Return how many calls of a tier an upstream takes at once; 0 is no limit."""
        configured = self.directory.upstream(upstream)
        return 0 if configured is None else configured.max_connections

    async def live_jobs(self) -> int:
        """Return how many jobs have not ended, as of a few seconds ago."""
        until, count = self._live_jobs
        if self._clock.monotonic() >= until:
            census = await self.insist(self.store.census)
            count = sum(census.jobs.get(state, 0) for state in LIVE_JOB_STATES)
            self._live_jobs = (self._clock.monotonic() + self.settings.pace_lifetime_seconds, count)
        return count

    # ---- the store

    async def insist(self, call: Callable[[], Awaitable[_T]]) -> _T:
        """Repeat a call of the store until it is up again."""
        failures = 0
        while True:
            try:
                return await call()
            except StoreUnavailable:
                failures += 1
                self.watch.trouble(Trouble.STORE, "")
                await self.sleep(
                    backoff_seconds(failures, _STORE_FIRST_SECONDS, _STORE_MOST_SECONDS, self._draw())
                )

    async def commit(self, lease: Lease, change: JobChange) -> Job:
        """Move a job. Raises `LeaseLost` and `Conflict`."""
        job = await self.insist(lambda: self.store.commit_job(lease, change))
        self.told(job, change)
        return job

    def told(self, job: Job, change: JobChange) -> None:
        """Tell the watch what a committed change did."""
        if not job.is_live:
            self.watch.ended(job)
        if change.booking is not None:
            self.watch.booked(job, change.booking)

    async def commit_batch(
        self, lease: Lease, move: BatchMove | None = None, changes: Sequence[JobChange] = ()
    ) -> Committed:
        """Move a batch and its jobs. Raises `LeaseLost` and `Conflict`."""
        return await self.insist(lambda: self.store.commit_batch(lease, move, changes))

    async def book(self, job: Job, booking: Booking) -> None:
        """Book an execution that ended nothing."""
        if await self.insist(lambda: self.store.book(booking)):
            self.watch.booked(job, booking)

    async def observe(self, group: Job | Batch, tier: JobTier, seconds: float) -> None:
        """Note how long a tier took."""
        where = group.group
        await self.insist(
            lambda: self.store.observe_completion(where.upstream, where.model, tier, max(0.0, seconds))
        )

    async def holding(self, lease: Lease, work: Awaitable[None]) -> bool:
        """Do some work and keep its lease alive; False if the lease was lost and the work cut off."""
        lost = False
        try:
            async with asyncio.TaskGroup() as group:
                beat = group.create_task(self._beat(lease), name=f"lease of {lease.subject}")
                try:
                    await work
                finally:
                    beat.cancel()
        except* LeaseLost:
            lost = True
        if lost:
            self.watch.trouble(Trouble.LEASE_LOST, "")
        return not lost

    async def _beat(self, lease: Lease) -> None:
        while True:
            await self.sleep(self.settings.lease_seconds / _BEATS_PER_LEASE)
            try:
                await self.store.renew(lease, self.settings.lease_seconds)
            except StoreUnavailable:
                continue  # nobody else can take it over either
