"""The admin API: probes, metrics, explain, jobs. Served by aiohttp: nothing here is on the data path."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Protocol

from aiohttp import web

from proxy.core.errors import ADMIN_REFUSED, BODY_TOO_LARGE, ProxyError
from proxy.edge.admin_access import refusal
from proxy.edge.admin_jobs import add_job_routes
from proxy.edge.decision_threads import DecisionThreads
from proxy.edge.errors import error_body
from proxy.edge.listener import cannot_listen, parse_listen, remove_stale_socket
from proxy.edge.request_body import decode_body
from proxy.edge.request_target import matched_path
from proxy.explanation import explain_request
from proxy.jobs.inspection import Inspector
from proxy.observe.metrics import Snapshot, merge, render
from proxy.pipeline import Pipeline, Request

_MAX_EXPLAIN_BYTES = 64 * 1024 * 1024

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Middleware(Protocol):
    """What aiohttp runs around every handler."""

    def __call__(self, request: web.Request, handler: Handler) -> Awaitable[web.StreamResponse]:
        """Answer a request, by the handler or without it."""
        ...


class Observed(Protocol):
    """What the admin API shows."""

    @property
    def is_ready(self) -> bool:
        """Whether requests are accepted and nobody asked to stop."""
        ...

    @property
    def pipeline(self) -> Pipeline:
        """The pipeline in force."""
        ...

    @property
    def jobs(self) -> Inspector | None:
        """What operators see of jobs, where any are kept."""
        ...

    async def snapshots(self) -> list[Snapshot]:
        """Return the metrics of every process, gauges up to date."""
        ...


class Admin:
    """The admin listener of one process."""

    def __init__(self, observed: Observed) -> None:
        self._observed = observed
        self._runner: web.AppRunner | None = None
        self._path: str | None = None
        self._threads = DecisionThreads(1)

    async def start(self, listen: str) -> str:
        """Begin to serve; return the URL. Raises OSError or ValueError."""
        app = web.Application(client_max_size=_MAX_EXPLAIN_BYTES, middlewares=[_guard(listen)])
        app.router.add_get("/healthz", self._healthz)
        app.router.add_get("/readyz", self._readyz)
        app.router.add_get("/metrics", self._metrics)
        app.router.add_post("/explain", self._explain)
        add_job_routes(app.router, lambda: self._observed.jobs)
        self._runner = web.AppRunner(app, access_log=None, auto_decompress=False)
        await self._runner.setup()
        where = parse_listen(listen)
        try:
            if isinstance(where, str):
                remove_stale_socket(where)
                self._path = where
                await web.UnixSite(self._runner, where).start()
                return f"http+unix://{where}"
            await web.TCPSite(self._runner, *where).start()
        except OSError as problem:
            raise cannot_listen(listen, problem) from None
        host, port = self._runner.addresses[0][:2]
        return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"

    async def stop(self) -> None:
        """Stop serving."""
        self._threads.shutdown()
        if self._runner is not None:
            await self._runner.cleanup()
        if self._path is not None:
            remove_stale_socket(self._path)

    async def _healthz(self, _: web.Request) -> web.Response:
        """The process lives. Upstreams and stores do not count: restarting would not mend them."""
        return web.Response(text="ok\n")

    async def _readyz(self, _: web.Request) -> web.Response:
        """The process accepts and is not draining. An upstream's outage does not empty the service."""
        if self._observed.is_ready:
            return web.Response(text="ready\n")
        return web.Response(status=503, text="not ready\n")

    async def _metrics(self, _: web.Request) -> web.Response:
        snapshots = await self._observed.snapshots()
        return web.Response(
            body=render(merge(snapshots)),
            headers={"Content-Type": "text/plain; version=0.0.4; charset=utf-8"},
        )

    async def _explain(self, request: web.Request) -> web.Response:
        """Explain the body as a POST to `?path=`, with the headers of this request as its own."""
        target = request.query.get("path", "/v1/chat/completions")
        try:
            path = matched_path(target.encode("utf-8"))
        except ProxyError as error:
            return _refusal(error)

        def header(name: str) -> str | None:
            return request.headers.get(name)

        pipeline = self._observed.pipeline

        def explain(raw: bytes) -> bytes:
            coding = request.headers.get("content-encoding", "").encode("latin-1", "replace")
            plain = decode_body(raw, coding, _MAX_EXPLAIN_BYTES) if coding else raw
            return explain_request(pipeline, Request("POST", path, header, plain))

        # In a thread: neither unpacking nor counting may hold up the requests that are being served.
        run = asyncio.get_running_loop().run_in_executor
        try:
            body = await run(self._threads, explain, await request.read())
        except web.HTTPRequestEntityTooLarge:
            return _refusal(ProxyError(BODY_TOO_LARGE, "This is more than can be explained."))
        except ProxyError as error:
            return _refusal(error)
        return web.Response(body=body, content_type="application/json")


def _guard(listen: str) -> Middleware:
    @web.middleware
    async def guard(request: web.Request, handler: Handler) -> web.StreamResponse:
        host, origin = request.headers.get("host"), request.headers.get("origin")
        why = refusal(request.path, host, origin, listen)
        return await handler(request) if why is None else _refusal(ProxyError(ADMIN_REFUSED, why))

    return guard


def _refusal(error: ProxyError) -> web.Response:
    return web.Response(status=error.kind.status, body=error_body(error), content_type="application/json")
