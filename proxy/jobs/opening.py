"""Which store a setting names, and the keys for it.

    sqlite:PATH                                       one file, for the processes of one machine
    redis://… rediss://… unix://…                     one server
    redis+sentinel://…  redis+cluster://…             see `proxy.jobs.remote.client`

Owns the spelling only. A URL may hold a password: no error shows it.
"""

from __future__ import annotations

from pathlib import Path

from proxy.core.clock import Clock
from proxy.jobs.sealing import Vault
from proxy.jobs.sqlite_store import SqliteStore
from proxy.jobs.store import JobStore

SQLITE = "sqlite:"
DEFAULT = "sqlite:weir-jobs.db"
REDIS_SCHEMES = ("redis", "rediss", "unix", "redis+sentinel", "redis+cluster")


def check_store(setting: str) -> str:
    """Return the setting if it names a store. Raises `ValueError` with what is wanted."""
    scheme, colon, rest = setting.partition(":")
    if colon and scheme == "sqlite" and rest.strip("/"):
        return setting
    if colon and scheme in REDIS_SCHEMES and rest.startswith("//"):
        return setting
    raise ValueError(
        "a store is sqlite:PATH, redis://HOST:PORT/DB (rediss, unix, redis+sentinel, redis+cluster) or off"
    )


def sqlite_path(setting: str) -> Path | None:
    """Return the path that a setting names, `None` for another kind of store."""
    if not setting.startswith(SQLITE):
        return None
    path = setting.removeprefix(SQLITE)
    # As in other URLs of databases: three slashes begin an absolute path.
    return Path(path.removeprefix("//") if path.startswith("//") else path)


def make_store(setting: str, clock: Clock, retention_seconds: float, vault: Vault | None) -> JobStore:
    """Return the store of a setting, not yet open. Raises `ValueError`."""
    check_store(setting)
    path = sqlite_path(setting)
    if path is not None:
        return SqliteStore(path, clock, retention_seconds=retention_seconds, vault=vault)
    # Only here: the client is slow to import, and few processes need it.
    from proxy.jobs.redis_store import RedisStore

    return RedisStore(setting, clock, retention_seconds=retention_seconds, vault=vault)
