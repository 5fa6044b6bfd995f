"""The pools of a policy set's upstreams, kept over reloads where an upstream did not change."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from proxy.core.upstream import Upstream
from proxy.http.deadlines import Deadlines
from proxy.http.limits import ClientLimits
from proxy.upstream.pool import Pool
from proxy.upstream.target import make_target


class Upstreams:
    """Named pools. Immutable: `replaced_by` returns the next generation."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        deadlines: Deadlines,
        limits: ClientLimits,
        environment: Mapping[str, str],
        pools: Mapping[str, Pool] | None = None,
    ) -> None:
        self._loop = loop
        self._deadlines = deadlines
        self._limits = limits
        self._environment = environment
        self.pools: Mapping[str, Pool] = pools or {}

    def replaced_by(self, upstreams: Mapping[str, Upstream]) -> Upstreams:
        """Return pools for `upstreams`. Raises ValueError or OSError for one that cannot be used."""
        pools: dict[str, Pool] = {}
        for name, upstream in upstreams.items():
            known = self.pools.get(name)
            if known is not None and known.target.upstream == upstream:
                pools[name] = known
            else:
                target = make_target(upstream, self._environment)
                pools[name] = Pool(target, self._loop, self._deadlines, self._limits)
                if known is not None and known.target.upstream.base_url == upstream.base_url:
                    pools[name].remember_habits(known)
        return Upstreams(self._loop, self._deadlines, self._limits, self._environment, pools)

    def close_except(self, kept: Upstreams | None) -> None:
        """Close the pools that `kept` does not use; requests in progress on them end in peace."""
        used = set(map(id, kept.pools.values())) if kept is not None else set()
        for pool in self.pools.values():
            if id(pool) not in used:
                pool.close()
