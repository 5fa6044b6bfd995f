"""Weir's own batch API of one process: where files and batches are kept, and the lane that answers callers.

Owns their life. The store is opened once the policies in force serve an upstream, so that nobody else finds a
file that nothing needs; while it is away callers are told to come again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator

from proxy.batch_server.api import BatchApi
from proxy.batch_server.opening import make_batch_store
from proxy.batch_server.store import BatchStore
from proxy.core.clock import Clock
from proxy.jobs.sealing import Vault
from proxy.jobs.store import StoreUnavailable
from proxy.policy.model import PolicySet

_log = logging.getLogger("weir")

_ENDING_SECONDS = 0.2


def serves_any(policies: PolicySet) -> bool:
    """Tell whether Weir answers `/v1/files` and `/v1/batches` for any upstream."""
    return any(upstream.batch_api is not None for upstream in policies.upstreams.values())


def served_told(policies: PolicySet, seals: bool) -> Iterator[str]:
    """Yield for the log whose files and batches are served, and what would else be learnt from refusals."""
    for name, upstream in policies.upstreams.items():
        if upstream.batch_api is None:
            continue
        told = f"files and batches for upstream {name} are served"
        if upstream.api_key is None and not seals:
            told += (
                ", but no batches to callers with credentials of their own: set WEIR_SECRET_KEY, or give the "
                "upstream an api_key"
            )
        yield told


class BatchServer:
    """See the module. `setting` is the job store's, `salt` too: `None` while that is away."""

    def __init__(
        self,
        setting: str,
        clock: Clock,
        vault: Vault | None,
        salt: Callable[[], bytes | None],
        policies: Callable[[], PolicySet],
        uploads_at_once: int,
    ) -> None:
        self.store: BatchStore = make_batch_store(setting, clock, vault)
        self.is_open = False
        self._clock = clock
        self._vault = vault
        self._salt = salt
        self._policies = policies
        self._uploads_at_once = uploads_at_once
        self._api: BatchApi | None = None
        self._is_known_away = False

    def lane(self, loop: asyncio.AbstractEventLoop, wake: Callable[[], None] = lambda: None) -> BatchApi:
        """Make the lane of callers; `wake` is called when a batch has become due."""
        kept = (self._clock, self.store, self._open_salt, self._vault, self._policies)
        api = BatchApi(loop, *kept, self._uploads_at_once, wake)
        self._api = api
        return api

    def _open_salt(self) -> bytes | None:
        return self._salt() if self.is_open else None

    async def open_if_wanted(self) -> None:
        """Open the store if it is needed and is not open. Raises StoreUnavailable."""
        if self.is_open or not serves_any(self._policies()):
            return
        try:
            await self.store.open()
        except StoreUnavailable:
            # What it has begun would stay open for ever.
            await self.store.close()
            raise
        self.is_open = True
        for told in served_told(self._policies(), self._vault is not None):
            _log.info("%s", told)

    async def look_after(self) -> None:
        """Try again what could not be opened; called every second."""
        try:
            await self.open_if_wanted()
        except StoreUnavailable as problem:
            if not self._is_known_away:
                _log.warning("the batch API cannot keep anything for now: %s", problem)
            self._is_known_away = True
        except Exception as problem:
            _log.error("the batch store could not be opened", exc_info=problem)
        else:
            self._is_known_away = False

    async def close(self) -> None:
        """Let callers' requests end, then close the store."""
        if self._api is not None:
            await self._api.tasks.end(_ENDING_SECONDS)
        await self.store.close()
