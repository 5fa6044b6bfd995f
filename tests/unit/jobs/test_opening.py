from __future__ import annotations

from pathlib import Path

import pytest

from proxy.core.clock import ManualClock
from proxy.jobs.opening import check_store, make_store
from proxy.jobs.redis_store import RedisStore
from proxy.jobs.sqlite_store import SqliteStore


@pytest.mark.parametrize(
    "setting",
    [
        "sqlite:jobs.db",
        "sqlite:/var/lib/weir/jobs.db",
        "sqlite:///var/lib/weir/jobs.db",
        "redis://127.0.0.1:6379/0",
        "rediss://host:6380",
        "unix:///run/redis.sock",
        "redis+sentinel://a:1,b:2/main",
        "redis+cluster://a:1,b:2",
    ],
)
def test_names_of_stores_are_understood(setting: str, tmp_path: Path) -> None:
    assert check_store(setting) == setting
    store = make_store(setting, ManualClock(), 60.0, None)
    assert isinstance(store, SqliteStore if setting.startswith("sqlite") else RedisStore)


@pytest.mark.parametrize(
    "setting", ["", "sqlite:", "jobs.db", "postgres://me:hidden@host", "redis:x", "off", "redis"]
)
def test_other_names_are_refused_without_being_shown(setting: str) -> None:
    with pytest.raises(ValueError, match="sqlite:PATH") as refusal:
        check_store(setting)
    assert "hidden" not in str(refusal.value)
