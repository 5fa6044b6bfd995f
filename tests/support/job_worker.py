"""A job worker at work: a store, the simulated provider, and jobs to accept.

async with rig(scenario) as r:
    job = await r.accept(tier=JobTier.FLEX)
    ended = await r.ended(job)
"""

from __future__ import annotations

import asyncio
import hashlib
import random
import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import aiohttp
from aiohttp import web

from proxy.core.clock import SystemClock
from proxy.core.price import Price, Rates, Tier, TierOffer
from proxy.core.upstream import Provider, Secret, Upstream
from proxy.jobs.memory_store import MemoryStore
from proxy.jobs.model import Answer, Booking, Job, JobTier
from proxy.jobs.packing import clean_body
from proxy.jobs.sealing import PlainVault
from proxy.jobs.shaping import STORED_WITHOUT, body_for
from proxy.jobs.store import JobStore
from proxy.jobs.worker.kit import Kit
from proxy.jobs.worker.loop import Worker
from proxy.jobs.worker.ports import RouteRules, SilentWatch, Trouble, WorkerSettings
from proxy.jobs.worker.providers import Providers
from proxy.sim.scenario import BackgroundRules, BatchRules, Scenario, Timing
from proxy.sim.server import make_app

FAST = Scenario(
    timing=Timing(base_ms=1.0, prefill_ms_per_token=0.0, decode_ms_per_token=0.05, output_tokens=5),
    batches=BatchRules(turnaround_seconds=0.1, cancel_seconds=0.02, creations_per_hour=0),
    background=BackgroundRules(time_factor=0.00001),
)
QUICK = WorkerSettings(
    name="worker-a",
    lease_seconds=2.0,
    idle_seconds=0.05,
    backoff_seconds=0.02,
    backoff_most_seconds=0.2,
    poll_seconds=0.02,
    poll_most_seconds=0.05,
    uncertain_seconds=0.05,
    purge_every_seconds=5.0,
    pace_lifetime_seconds=0.0,
)
_ENDPOINTS = ("/v1/chat/completions", "/v1/responses", "/v1/embeddings")


class Table:
    """Prices and offers of every model: a dollar for a million tokens of input, two for output."""

    def __init__(self, typical_seconds: float = 0.5, direct_seconds: float = 0.5) -> None:
        self._typical = typical_seconds
        self._direct = direct_seconds

    def price(self, provider: str, model: str) -> Price | None:
        standard, half = Rates(1, 2, 1, 1), Rates(0.5, 1, 0.5, 0.5)
        return Price(standard, flex=half, batch=half, background_2h=Rates(0.7, 1.4, 0.7, 0.7))

    def offer(self, provider: str, tier: Tier) -> TierOffer | None:
        return TierOffer(_ENDPOINTS, self._direct if tier is Tier.STANDARD else self._typical)


@dataclass
class Policies:
    """A directory with one upstream."""

    one: Upstream | None
    flush: RouteRules = field(default_factory=lambda: RouteRules(10, 0.05))

    def upstream(self, name: str) -> Upstream | None:
        return self.one if self.one is not None and self.one.name == name else None

    def rules(self, route: str) -> RouteRules:
        return self.flush


@dataclass
class Counting(SilentWatch):
    """What a watch was told."""

    endings: list[Job] = field(default_factory=list)
    troubles: list[Trouble] = field(default_factory=list)
    rescues: list[Job] = field(default_factory=list)
    bookings: list[Booking] = field(default_factory=list)

    def ended(self, job: Job) -> None:
        self.endings.append(job)

    def rescue_begun(self, job: Job) -> None:
        self.rescues.append(job)

    def booked(self, job: Job, booking: Booking) -> None:
        self.bookings.append(booking)

    def trouble(self, kind: Trouble, upstream: str) -> None:
        self.troubles.append(kind)


def new_job(upstream: str = "openai", seconds: float = 20.0, **fields: Any) -> Job:
    """Return a job as intake makes one; a batch's is rescued half a second before its deadline."""
    now = SystemClock().wall()
    job_id = uuid.uuid4().hex
    values: dict[str, Any] = {
        "id": job_id,
        "attach_key": job_id,
        "owner": "owner",
        "upstream": upstream,
        "endpoint": "/v1/chat/completions",
        "model": "gpt-4o-mini",
        "account": "account",
        "created": now,
        "deadline": now + seconds,
        "ready": now,
        "input_tokens": 10,
        "tier": JobTier.BATCH,
    }
    values |= fields
    is_batch = values["tier"] is JobTier.BATCH
    values.setdefault("due", values["deadline"] - 0.5 if is_batch else now)
    return Job(**values)


def body_of(job: Job, text: str | None = None) -> bytes:
    """Return a body that no other job has."""
    words = text or f"question {job.id}"
    if job.endpoint == "/v1/responses":
        raw = f'{{"model":"{job.model}","input":"{words}","stream":true}}'
    else:
        raw = f'{{"model":"{job.model}","messages":[{{"role":"user","content":"{words}"}}]}}'
    return clean_body(raw.encode(), STORED_WITHOUT)


@dataclass
class Rig:
    """A worker over a store and one upstream."""

    store: JobStore
    policies: Policies
    settings: WorkerSettings
    table: Table
    watch: Counting
    kit: Kit
    worker: Worker
    url: str
    sent: dict[str, bytes] = field(default_factory=dict)

    async def accept(self, text: str | None = None, **fields: Any) -> Job:
        """Accept one job."""
        job = new_job(**fields)
        body = body_of(job, text)
        self.sent[job.id] = body
        return (await self.store.accept(job, body)).job

    async def ended(self, job: Job, seconds: float = 15.0) -> Job:
        """Return a job once it has ended."""
        ended = await self.store.wait(job.id, seconds)
        assert ended is not None
        assert not ended.is_live, (
            f"still {ended.state} after {seconds} s: {ended.error}, {self.watch.troubles}"
        )
        return ended

    async def answer(self, job: Job) -> Answer:
        """Return a job's answer once there is one."""
        ended = await self.ended(job)
        answer = await self.store.answer(job.id)
        assert answer is not None, f"{ended.state}: {ended.error}"
        return answer

    async def booked(self, job: Job) -> dict[str, Booking]:
        """Return a job's bookings by key."""
        return {booking.key: booking for booking in await self.store.bookings(job.id)}

    async def stats(self) -> dict[str, Any]:
        """Return the simulated provider's counters."""
        return await stats_of(self.url)

    async def executions(self, job: Job) -> int:
        """Return how often the provider worked on a job, in whatever tier."""
        return executions_of(await self.stats(), self.sent[job.id])

    async def until(self, holds: Callable[[], Any], seconds: float = 10.0) -> None:
        """Wait until something holds."""
        until = asyncio.get_running_loop().time() + seconds
        while not await holds():
            assert asyncio.get_running_loop().time() < until, self.watch.troubles
            await asyncio.sleep(0.01)


async def stats_of(url: str) -> dict[str, Any]:
    """Return a simulated provider's counters."""
    async with aiohttp.ClientSession() as session, session.get(f"{url}/sim/stats") as response:
        found: dict[str, Any] = await response.json()
        return found


def executions_of(stats: dict[str, Any], body: bytes) -> int:
    """Return how often a body was executed, in whatever tier."""
    tiers = (JobTier.DIRECT, JobTier.FLEX, JobTier.BACKGROUND_2H, JobTier.BACKGROUND_8H)
    hashes = {hashlib.sha256(body_for(tier, body)).hexdigest() for tier in tiers}
    return sum(stats["executions"].get(each, 0) for each in hashes | {hashlib.sha256(body).hexdigest()})


def kit_for(
    store: JobStore,
    policies: Policies,
    settings: WorkerSettings = QUICK,
    table: Table | None = None,
    watch: Counting | None = None,
) -> Kit:
    """Return what a worker works with."""
    providers = Providers(policies, {}, PlainVault())
    draw = random.Random(1).random
    return Kit(
        store,
        SystemClock(),
        settings,
        policies,
        providers,
        table or Table(),
        watch or Counting(),
        draw,
    )


@asynccontextmanager
async def serving(app: web.Application) -> AsyncIterator[str]:
    """Serve an application on a free port."""
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.5)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        host, port = runner.addresses[0][:2]
        yield f"http://{host}:{port}"
    finally:
        await runner.cleanup()


def upstream_at(url: str, **fields: Any) -> Upstream:
    """Return an upstream with a key of its own."""
    values: dict[str, Any] = {"api_key": Secret("sk-test"), "provider": Provider.GENERIC} | fields
    return Upstream("openai", f"{url}/v1", **values)


@asynccontextmanager
async def rig(
    scenario: Scenario = FAST,
    *,
    app: web.Application | None = None,
    store: JobStore | None = None,
    settings: WorkerSettings = QUICK,
    table: Table | None = None,
    rules: RouteRules | None = None,
    state: Path | None = None,
    is_running: bool = True,
    **upstream: Any,
) -> AsyncIterator[Rig]:
    """Run a worker against a simulated provider, or against another application."""
    async with (
        serving(app or make_app(scenario, state=state)) as url,
        rig_at(
            url,
            store=store,
            settings=settings,
            table=table,
            rules=rules,
            is_running=is_running,
            **upstream,
        ) as r,
    ):
        yield r


@asynccontextmanager
async def rig_at(
    url: str,
    *,
    store: JobStore | None = None,
    settings: WorkerSettings = QUICK,
    table: Table | None = None,
    rules: RouteRules | None = None,
    is_running: bool = True,
    **upstream: Any,
) -> AsyncIterator[Rig]:
    """Run a worker against whatever answers at a URL."""
    store = store or MemoryStore(SystemClock())
    policies = Policies(upstream_at(url, **upstream))
    if rules is not None:
        policies = replace(policies, flush=rules)
    watch, table = Counting(), table or Table()
    kit = kit_for(store, policies, settings, table, watch)
    worker = Worker(kit)
    running = asyncio.get_running_loop().create_task(worker.run()) if is_running else None
    try:
        yield Rig(store, policies, settings, table, watch, kit, worker, url)
    finally:
        if running is not None:
            await worker.stop()
            await running
        await kit.providers.close()
