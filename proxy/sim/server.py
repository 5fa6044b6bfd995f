"""The simulated provider as a server: its routes, its start and its end.

It owns the aiohttp application. What an endpoint answers stands in one file for each API shape; a new
endpoint is a new file and a line in SHAPES.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from pathlib import Path

from aiohttp import web

from proxy.core.clock import Clock, SystemClock
from proxy.sim import chat, completions, counts, embeddings, messages, moderations
from proxy.sim.deferred import batches_api, files_api, responses_api
from proxy.sim.errors import ApiError, Family, error_body
from proxy.sim.journal import Journal
from proxy.sim.provider import Provider
from proxy.sim.scenario import Scenario
from proxy.sim.work import Shape, to_json

SHAPES: tuple[Shape, ...] = (
    chat.SHAPE,
    completions.SHAPE,
    embeddings.SHAPE,
    moderations.SHAPE,
    messages.SHAPE,
    *counts.SHAPES,
    *responses_api.SHAPES,
    *files_api.SHAPES,
    *batches_api.SHAPES,
)

_MAX_BODY_BYTES = 1 << 30
_SHUTDOWN_SECONDS = 5.0
_PROVIDER = web.AppKey("provider", Provider)

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def make_app(
    scenario: Scenario, *, clock: Clock | None = None, state: Path | str | None = None
) -> web.Application:
    """Return the application of a new simulated provider.

    `clock` decides cache lifetimes, rate limits and when batches and background responses are done. `state`
    is a file in which files, batches, stored responses and counters outlive the process; ValueError if it
    cannot be used.
    """
    provider = Provider(scenario, clock or SystemClock(), Journal(state))
    app = web.Application(client_max_size=_MAX_BODY_BYTES, middlewares=[_shape_http_errors])
    app[_PROVIDER] = provider
    for shape in SHAPES:
        app.router.add_route(shape.method, shape.path, _handler(provider, shape))
    app.router.add_get("/sim/stats", _show_stats)
    app.router.add_post("/sim/reset", _reset)
    app.cleanup_ctx.append(_keep_running)
    app.on_shutdown.append(_end_all_work)
    return app


async def serve(
    listen: str,
    scenario: Scenario,
    announce: Callable[[str], None],
    *,
    clock: Clock | None = None,
    state: Path | str | None = None,
) -> None:
    """Serve until cancelled.

    `listen` is `HOST:PORT` (port 0 = any free one) or `unix:PATH`; `announce` is called once connections are
    accepted, with the real `http://HOST:PORT` or `unix:PATH`. `state` is as in `make_app`. Raises ValueError
    for another `listen` or a state file that cannot be used, and OSError where it cannot be bound.
    """
    runner = web.AppRunner(
        make_app(scenario, clock=clock, state=state), access_log=None, shutdown_timeout=_SHUTDOWN_SECONDS
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


async def _keep_running(app: web.Application) -> AsyncIterator[None]:
    provider = app[_PROVIDER]
    tasks = [
        _started("sim: look out for callers that left", provider.presence.look_out()),
        _started("sim: work on what is due later", provider.work_on()),
    ]
    yield
    for task in tasks:
        task.cancel()
    for task in tasks:
        with contextlib.suppress(asyncio.CancelledError):
            await task
    provider.close()


def _started(name: str, work: Coroutine[object, object, None]) -> asyncio.Task[None]:
    task = asyncio.get_running_loop().create_task(work, name=name)
    task.add_done_callback(_report_end)
    return task


def _report_end(task: asyncio.Task[None]) -> None:
    """Say at once that a task ended by a mistake of ours: nothing else would before the provider stops."""
    error = None if task.cancelled() else task.exception()
    if error is not None:
        task.get_loop().call_exception_handler({"message": f"{task.get_name()}: ended", "exception": error})


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
