"""The worker as a whole: it shares work, outlives its store's absence, uses the payer's own credential."""

from __future__ import annotations

import asyncio
import logging
import secrets
from dataclasses import replace
from typing import Any, cast

import pytest

from proxy.core.clock import SystemClock
from proxy.core.upstream import Secret
from proxy.jobs.credentials import seal_credential
from proxy.jobs.memory_store import MemoryStore
from proxy.jobs.model import JobState, JobTier
from proxy.jobs.sealing import SecretVault
from proxy.jobs.store import JobStore, StoreUnavailable
from proxy.jobs.worker.kit import Kit
from proxy.jobs.worker.loop import Worker
from proxy.jobs.worker.ports import Trouble
from proxy.jobs.worker.providers import Providers
from tests.support.job_worker import FAST, QUICK, Counting, Table, kit_for, rig


class Away:
    """A store that is away whenever it is told so."""

    def __init__(self, store: JobStore) -> None:
        self._store = store
        self.is_away = False

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._store, name)

        async def call(*given: Any, **named: Any) -> Any:
            if self.is_away:
                raise StoreUnavailable("away")
            return await method(*given, **named)

        return call


def test_workers_share_one_store() -> None:
    async def scenario() -> None:
        async with rig() as r:
            second = Worker(kit_for(r.store, r.policies, replace(QUICK, name="worker-b")))
            task = asyncio.get_running_loop().create_task(second.run())
            tiers = (JobTier.BATCH, JobTier.FLEX, JobTier.DIRECT) * 8
            jobs = [await r.accept(tier=tier) for tier in tiers]
            for job in jobs:
                assert (await r.answer(job)).status == 200
                assert await r.executions(job) == 1
            await second.stop()
            await task
            await second.kit.providers.close()

    asyncio.run(scenario())


def test_a_store_that_goes_away_and_comes_back_loses_nothing() -> None:
    async def scenario() -> None:
        inner = MemoryStore(SystemClock())
        away = Away(inner)
        async with rig(store=cast(JobStore, away)) as r:
            jobs = [await r.accept(tier=tier) for tier in (JobTier.BATCH, JobTier.DIRECT) * 5]
            for _ in range(4):
                await asyncio.sleep(0.05)
                away.is_away = True
                await asyncio.sleep(0.1)
                away.is_away = False
            for job in jobs:
                assert (await r.answer(job)).status == 200
                assert await r.executions(job) == 1
            assert Trouble.STORE in r.watch.troubles

    asyncio.run(scenario())


@pytest.mark.parametrize("tier", [JobTier.BATCH, JobTier.DIRECT])
def test_a_borrowed_credential_pays_and_shows_nowhere(
    tier: JobTier, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        vault = SecretVault([Secret(secrets.token_urlsafe(32))])
        async with rig(replace(FAST, api_keys=("sk-caller",)), is_running=False, api_key=None) as r:
            fields = (("Authorization", "Bearer sk-caller"),)
            blob = seal_credential(vault, "account", fields)
            kit = _kit_with(r.store, r.policies, vault)
            worker = Worker(kit)
            task = asyncio.get_running_loop().create_task(worker.run())
            job = await r.accept(tier=tier, is_borrowing=True, credential=blob)
            assert (await r.answer(job)).status == 200
            assert (await r.ended(job)).credential is None
            await worker.stop()
            await task
            await kit.providers.close()

    with caplog.at_level(logging.DEBUG):
        asyncio.run(scenario())
    assert "sk-caller" not in caplog.text


@pytest.mark.parametrize("tier", [JobTier.BATCH, JobTier.DIRECT])
def test_a_borrowed_credential_that_is_refused_fails_the_job_with_that_answer(tier: JobTier) -> None:
    async def scenario() -> None:
        vault = SecretVault([Secret(secrets.token_urlsafe(32))])
        async with rig(replace(FAST, api_keys=("sk-other",)), is_running=False, api_key=None) as r:
            blob = seal_credential(vault, "account", (("Authorization", "Bearer sk-caller"),))
            kit = _kit_with(r.store, r.policies, vault)
            worker = Worker(kit)
            task = asyncio.get_running_loop().create_task(worker.run())
            job = await r.accept(tier=tier, is_borrowing=True, credential=blob)
            ended = await r.ended(job)
            answer = await r.store.answer(job.id)
            assert ended.state is JobState.FAILED
            assert answer is not None
            assert answer.status == 401
            await worker.stop()
            await task
            await kit.providers.close()

    asyncio.run(scenario())


def test_a_credential_that_does_not_open_fails_the_job_with_the_reason() -> None:
    async def scenario() -> None:
        vault = SecretVault([Secret(secrets.token_urlsafe(32))])
        async with rig(api_key=None) as r:
            blob = seal_credential(vault, "account", (("Authorization", "Bearer sk-caller"),))
            job = await r.accept(tier=JobTier.BATCH, is_borrowing=True, credential=blob)
            ended = await r.ended(job)
            assert ended.state is JobState.FAILED
            assert ended.error is not None
            assert ended.error.code == "credential_unreadable"
            assert "WEIR_SECRET_KEY" in ended.error.message

    asyncio.run(scenario())


def test_an_upstream_that_is_gone_is_waited_for() -> None:
    async def scenario() -> None:
        async with rig() as r:
            up, r.policies.one = r.policies.one, None
            jobs = [await r.accept(tier=tier) for tier in (JobTier.BATCH, JobTier.DIRECT)]
            await asyncio.sleep(0.2)
            r.policies.one = up
            for job in jobs:
                assert (await r.answer(job)).status == 200

    asyncio.run(scenario())


def test_stopping_gives_a_batch_back_at_once() -> None:
    async def scenario() -> None:
        async with rig(settings=replace(QUICK, lease_seconds=60.0)) as r:
            job = await r.accept()

            async def is_sent() -> bool:
                seen = await r.store.get(job.id)
                return seen is not None and seen.state is JobState.SUBMITTED

            await r.until(is_sent)
            await r.worker.stop(drain_seconds=1.0)
            second = Worker(kit_for(r.store, r.policies, replace(QUICK, name="worker-b")))
            task = asyncio.get_running_loop().create_task(second.run())
            assert (await r.answer(job)).status == 200
            assert await r.executions(job) == 1
            await second.stop()
            await task
            await second.kit.providers.close()

    asyncio.run(scenario())


def _kit_with(store: JobStore, policies: Any, vault: SecretVault) -> Kit:
    providers = Providers(policies, {}, vault)
    return Kit(store, SystemClock(), QUICK, policies, providers, Table(), Counting(), lambda: 0.5)
