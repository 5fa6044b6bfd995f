"""Which batch store goes with the setting of a job store (`proxy.jobs.opening`).

sqlite:PATH        PATH.batches, a file of its own beside the jobs
redis://… …        the same server, under keys of its own
"""

from __future__ import annotations

from pathlib import Path

from proxy.batch_server.sqlite_store import SqliteBatchStore
from proxy.batch_server.store import BatchStore
from proxy.core.clock import Clock
from proxy.jobs.opening import check_store, sqlite_path
from proxy.jobs.sealing import Vault

SUFFIX = ".batches"


def make_batch_store(setting: str, clock: Clock, vault: Vault | None) -> BatchStore:
    """Return the batch store of a setting, not yet open. Raises `ValueError`."""
    path = sqlite_path(check_store(setting))
    if path is not None:
        return SqliteBatchStore(Path(f"{path}{SUFFIX}"), clock, vault=vault)
    # Only here: the client is slow to import, and few processes need it.
    from proxy.batch_server.redis_store import RedisBatchStore

    return RedisBatchStore(setting, clock, vault=vault)
