"""The simulated provider as a server: its routes, its start and its end.

It owns the aiohttp application. What an endpoint answers stands in one file for each API shape; a new
endpoint is a new file and a line in SHAPES.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable

from aiohttp import web

from proxy.core.clock import Clock, SystemClock
from proxy.sim import chat, completions, counts, embeddings, messages, moderations, responses
from proxy.sim.errors import ApiError, Family, error_body
from proxy.sim.provider import Provider
from proxy.sim.scenario import Scenario
from proxy.sim.work import Shape, to_json

SHAPES: tuple[Shape, ...] = (
    chat.SHAPE,
    completions.SHAPE,
    embeddings.SHAPE,
    moderations.SHAPE,
    responses.SHAPE,
    messages.SHAPE,
    *counts.SHAPES,
)

_MAX_BODY_BYTES = 1 << 30
_SHUTDOWN_SECONDS = 5.0
_PROVIDER = web.AppKey("provider", Provider)

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def make_app(scenario: Scenario, *, clock: Clock | None = None) -> web.Application:
    """Return the application of a new simulated provider; `clock` decides cache lifetimes and rate limits."""
    provider = Provider(scenario, clock or SystemClock())
    app = web.Application(client_max_size=_MAX_BODY_BYTES, middlewares=[_shape_http_errors])
    app[_PROVIDER] = provider
    for shape in SHAPES:
        app.router.add_route(shape.method, shape.path, _handler(provider, shape))
    app.router.add_get("/sim/stats", _show_stats)
    app.router.add_post("/sim/reset", _reset)
    app.cleanup_ctx.append(_watch_callers)
    app.on_shutdown.append(_end_all_work)
    return app


async def serve(
    listen: str, scenario: Scenario, announce: Callable[[str], None], *, clock: Clock | None = None
) -> None:
    """Serve until cancelled.

    `listen` is `HOST:PORT` (port 0 = any free one) or `unix:PATH`; `announce` is called once connections are
    accepted, with the real `http://HOST:PORT` or `unix:PATH`. Raises ValueError for another `listen` and
    OSError where it cannot be bound.
    """
    runner = web.AppRunner(
        make_app(scenario, clock=clock), access_log=None, shutdown_timeout=_SHUTDOWN_SECONDS
    )
    await runner.setup()
    try:
        announce(await _bind(runner, listen))
        await asyncio.Event().wait()
    finally:
        await runner.cleanup()


async def _bind(runner: web.AppRunner, listen: str) -> str:
    if listen.startswith("unix:") and listen != "unix:":
        await web.UnixSite(runner, listen.removeprefix("unix:")).start()
        return listen
    host, colon, port = listen.rpartition(":")
    if not colon or not host or not port.isdecimal():
        raise ValueError(f"cannot listen on {listen!r}: expected HOST:PORT or unix:PATH")
    await web.TCPSite(runner, host.strip("[]"), int(port)).start()
    address = runner.addresses[0]
    shown_host = f"[{address[0]}]" if ":" in address[0] else address[0]
    return f"http://{shown_host}:{address[1]}"


def _handler(provider: Provider, shape: Shape) -> Handler:
    async def handle(request: web.Request) -> web.StreamResponse:
        return await provider.answer(request, shape)

    return handle


async def _show_stats(request: web.Request) -> web.Response:
    return web.json_response(request.app[_PROVIDER].stats())


async def _reset(request: web.Request) -> web.Response:
    request.app[_PROVIDER].reset()
    return web.Response(status=204)


async def _watch_callers(app: web.Application) -> AsyncIterator[None]:
    task = asyncio.get_running_loop().create_task(
        app[_PROVIDER].presence.look_out(), name="sim: look out for callers that left"
    )
    yield
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task


async def _end_all_work(app: web.Application) -> None:
    app[_PROVIDER].presence.close()


@web.middleware
async def _shape_http_errors(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Answer unknown paths, wrong methods and overlong bodies in the shape of the API that was meant."""
    try:
        return await handler(request)
    except web.HTTPException as error:
        if error.status < 400:
            raise
        message = f"Invalid URL ({request.method} {request.path})" if error.status == 404 else error.reason
        family = Family.ANTHROPIC if request.path.startswith("/v1/messages") else Family.OPENAI
        body = error_body(family, ApiError(error.status, message), "req_none")
        headers = {"Server": "weir-sim"}
        return web.Response(
            status=error.status, headers=headers, body=to_json(body), content_type="application/json"
        )
