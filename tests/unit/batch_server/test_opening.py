"""Which batch store goes with the setting of a job store."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from proxy.batch_server.opening import make_batch_store
from proxy.batch_server.redis_store import RedisBatchStore
from proxy.core.clock import ManualClock


@pytest.mark.parametrize("slashes", ["", "//"])
def test_files_are_kept_beside_the_jobs(tmp_path: Path, slashes: str) -> None:
    async def test() -> None:
        store = make_batch_store(f"sqlite:{slashes}{tmp_path}/jobs.db", ManualClock(), None)
        await store.open()
        await store.close()

    asyncio.run(test())
    assert [file.name for file in tmp_path.iterdir()] == ["jobs.db.batches"]


@pytest.mark.parametrize(
    "setting", ["redis://127.0.0.1:6379/0", "unix:///run/redis.sock", "redis+cluster://a:1,b:2"]
)
def test_a_server_keeps_both(setting: str) -> None:
    assert isinstance(make_batch_store(setting, ManualClock(), None), RedisBatchStore)


@pytest.mark.parametrize("setting", ["", "sqlite:", "postgres://me:hidden@host", "off"])
def test_other_settings_are_refused_without_being_shown(setting: str) -> None:
    with pytest.raises(ValueError, match="sqlite:PATH") as refusal:
        make_batch_store(setting, ManualClock(), None)
    assert "hidden" not in str(refusal.value)
