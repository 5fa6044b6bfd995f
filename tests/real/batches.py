"""Weir's own job worker, with an embedded store, at a batch server that somebody else wrote.

It sits behind a relay, because what aimock does with a batch is asked for by a header that Weir never sends,
and because an answer has to get lost now and then.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import aiohttp
from aiohttp import web

from proxy.core.clock import SystemClock
from proxy.jobs.sqlite_store import SqliteStore
from proxy.jobs.worker.ports import RouteRules, WorkerSettings
from tests.support.job_worker import QUICK, Rig, rig_at, serving

RETENTION_SECONDS = 3600.0
SETTINGS = replace(QUICK, poll_seconds=0.3, poll_most_seconds=0.3, uncertain_seconds=0.2)
"""Polls leave enough time between a batch's creation and its first look for a test to do something."""

_OUTCOME = "X-AIMock-Batch-Outcome"
_HOP_BY_HOP = {"host", "content-length", "transfer-encoding", "connection", "content-encoding"}


@dataclass
class Relay:
    """What happens to the next creations of a batch, in their order.

    outcomes   how aimock is to end them
    lost       so many are done, but their answers do not arrive
    """

    server_url: str
    outcomes: list[str] = field(default_factory=list)
    lost: int = 0

    async def pass_on(self, request: web.Request) -> web.Response:
        """Pass a request on, and its answer back."""
        is_creation = (request.method, request.path) == ("POST", "/v1/batches")
        headers = {name: value for name, value in request.headers.items() if name.lower() not in _HOP_BY_HOP}
        if is_creation and self.outcomes:
            headers[_OUTCOME] = self.outcomes.pop(0)
        async with (
            aiohttp.ClientSession() as session,
            session.request(
                request.method, self.server_url + request.path_qs, headers=headers, data=await request.read()
            ) as answer,
        ):
            body = await answer.read()
            if is_creation and self.lost:
                self.lost -= 1
                if request.transport is not None:
                    request.transport.abort()
            kept = {name: value for name, value in answer.headers.items() if name.lower() not in _HOP_BY_HOP}
            return web.Response(status=answer.status, headers=kept, body=body)


@dataclass(frozen=True, slots=True)
class AtWork:
    """A worker at a server that had the batches `known` before. `rig` accepts jobs and waits for them."""

    rig: Rig
    relay: Relay
    known: frozenset[str]

    async def batches(self) -> list[dict[str, Any]]:
        """Return the batches that were made at the server since, oldest first."""
        return [
            each for each in reversed(await listed(self.relay.server_url)) if each["id"] not in self.known
        ]

    async def are_gone(self, batch: dict[str, Any]) -> bool:
        """Tell whether all files of a batch were deleted at the server."""
        for name in ("input_file_id", "output_file_id", "error_file_id"):
            file_id = batch.get(name)
            if file_id is not None and (await ask(self.relay.server_url, f"/v1/files/{file_id}"))[0] != 404:
                return False
        return True


async def ask(server_url: str, path: str) -> tuple[int, Any]:
    """Ask a server itself."""
    async with aiohttp.ClientSession() as session, session.get(server_url + path) as answer:
        return answer.status, json.loads(await answer.read())


async def listed(server_url: str) -> list[dict[str, Any]]:
    """Return a server's batches, newest first."""
    found: list[dict[str, Any]] = (await ask(server_url, "/v1/batches?limit=100"))[1]["data"]
    return found


@asynccontextmanager
async def at_work(
    server_url: str, folder: Path, settings: WorkerSettings = SETTINGS, *, jobs: int = 3, **relay: Any
) -> AsyncIterator[AtWork]:
    """Work at a server until the block ends; so many jobs make a batch."""
    passing = Relay(server_url, **relay)
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", passing.pass_on)
    store = SqliteStore(folder / "jobs.db", SystemClock(), retention_seconds=RETENTION_SECONDS)
    await store.open()
    try:
        async with (
            serving(app) as url,
            rig_at(url, store=store, settings=settings, rules=RouteRules(jobs, 5.0)) as rig,
        ):
            known = frozenset(each["id"] for each in await listed(server_url))
            yield AtWork(rig, passing, known)
    finally:
        await store.close()
