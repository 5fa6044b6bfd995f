"""Calls on Weir's own behalf: the upstream's configuration holds, secrets stay where they belong."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from proxy.core.upstream import Provider, Secret, Timeouts, Upstream
from proxy.upstream.providers.client import CallFailed, ProviderClient
from tests.support.job_worker import serving, upstream_at


def echo() -> web.Application:
    async def handle(request: web.Request) -> web.Response:
        body = await request.read()
        return web.json_response(
            {"headers": dict(request.headers), "target": request.raw_path, "length": len(body)}
        )

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", handle)
    return app


Test = Callable[[ProviderClient], Awaitable[None]]


def against(
    app: web.Application, test: Test, environment: dict[str, str] | None = None, **fields: object
) -> None:
    async def run() -> None:
        async with serving(app) as url:
            client = ProviderClient.for_upstream(upstream_at(url, **fields), environment or {})
            try:
                await test(client)
            finally:
                await client.close()

    asyncio.run(run())


def test_an_upstream_with_a_key_gets_that_key_and_nothing_of_the_caller() -> None:
    async def test(client: ProviderClient) -> None:
        headers = (("Authorization", "Bearer caller"), ("Cookie", "c=1"), ("X-Kept", "1"), ("Host", "evil"))
        reply = await client.call(
            "POST", "/v1/x?a=%2F", headers=headers, credential=(("Authorization", "Bearer c"),), body=b"12"
        )
        assert b"Bearer sk-test" in reply.body
        assert b"caller" not in reply.body
        assert b"Cookie" not in reply.body
        assert b'"X-Kept": "1"' in reply.body
        assert b"evil" not in reply.body
        assert b'"target": "/v1/x?a=%2F"' in reply.body
        assert b'"Content-Length": "2"' in reply.body

    against(echo(), test)


def test_an_upstream_without_a_key_gets_the_callers_credential() -> None:
    async def test(client: ProviderClient) -> None:
        reply = await client.call("GET", "/v1/x", credential=(("Authorization", "Bearer caller"),))
        assert b"Bearer caller" in reply.body

    against(echo(), test, api_key=None)


def test_azure_and_anthropic_have_their_own_header() -> None:
    async def test(client: ProviderClient) -> None:
        assert b'"x-api-key": "sk-test"' in (await client.call("GET", "/v1/x")).body

    against(echo(), test, provider=Provider.ANTHROPIC)


def test_a_refused_connection_did_nothing() -> None:
    async def run() -> None:
        upstream = upstream_at("http://127.0.0.1:9")
        async with ProviderClient.for_upstream(upstream, {}) as client:
            with pytest.raises(CallFailed) as failed:
                await client.call("GET", "/v1/x")
            assert not failed.value.may_have_happened
            assert "127.0.0.1:9" not in str(failed.value) or "sk-" not in str(failed.value)

    asyncio.run(run())


def test_a_connection_that_breaks_may_have_done_something() -> None:
    async def cut(request: web.Request) -> web.Response:
        assert request.transport is not None
        request.transport.abort()
        return web.Response()

    app = web.Application()
    app.router.add_post("/v1/x", cut)

    async def test(client: ProviderClient) -> None:
        with pytest.raises(CallFailed) as failed:
            await client.call("POST", "/v1/x", body=b"{}")
        assert failed.value.may_have_happened

    against(app, test)


def test_the_first_byte_limit_of_the_upstream_holds() -> None:
    async def slow(request: web.Request) -> web.Response:
        await asyncio.sleep(5)
        return web.Response()

    app = web.Application()
    app.router.add_post("/v1/x", slow)

    async def test(client: ProviderClient) -> None:
        with pytest.raises(CallFailed) as failed:
            await client.call("POST", "/v1/x", body=b"{}")
        assert failed.value.may_have_happened

    against(app, test, timeouts=Timeouts(first_byte=0.1))


def test_redirects_are_answers_and_cookies_are_forgotten() -> None:
    async def handle(request: web.Request) -> web.Response:
        if "Cookie" in request.headers:
            return web.Response(status=418)
        return web.Response(status=302, headers={"Location": "/elsewhere", "Set-Cookie": "a=b"})

    app = web.Application()
    app.router.add_get("/v1/x", handle)

    async def test(client: ProviderClient) -> None:
        for _ in range(2):
            assert (await client.call("GET", "/v1/x")).status == 302

    against(app, test)


def test_a_unix_socket_is_used(tmp_path: Path) -> None:
    async def run() -> None:
        runner = web.AppRunner(echo(), access_log=None)
        await runner.setup()
        await web.UnixSite(runner, str(tmp_path / "s")).start()
        upstream = Upstream("openai", "http://provider.test/v2", unix_socket=str(tmp_path / "s"))
        async with ProviderClient.for_upstream(upstream, {}) as client:
            reply = await client.call("GET", "/v1/x")
        assert b'"Host": "provider.test"' in reply.body
        assert b'"target": "/v2/x"' in reply.body
        await runner.cleanup()

    asyncio.run(run())


def test_a_forward_proxy_is_asked_with_its_credentials() -> None:
    async def run() -> None:
        seen: list[tuple[str, str | None]] = []

        async def proxy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            fields = {
                line.partition(":")[0].lower(): line.partition(":")[2].strip() for line in head.split("\r\n")
            }
            seen.append((head.split("\r\n")[0], fields.get("proxy-authorization")))
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
            await writer.drain()
            writer.close()

        server = await asyncio.start_server(proxy, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        upstream = Upstream("openai", "http://provider.test/v1", proxy=f"http://me:secret@127.0.0.1:{port}")
        async with ProviderClient.for_upstream(upstream, {}) as client:
            assert (await client.call("GET", "/v1/x")).body == b"ok"
        token = base64.b64encode(b"me:secret").decode()
        assert seen == [("GET http://provider.test/v1/x HTTP/1.1", f"Basic {token}")]
        server.close()
        await server.wait_closed()

    asyncio.run(run())


@pytest.mark.parametrize(
    ("upstream", "credential"),
    [
        ({"api_key": Secret("k1")}, ()),
        ({"api_key": Secret("k1"), "provider": Provider.AZURE}, ()),
        ({}, (("Authorization", "bearer k1"), ("Cookie", "c=1"))),
        ({}, (("x-api-key", "k1"),)),
    ],
)
def test_a_key_goes_bare_into_another_header_where_a_path_wants_it(
    upstream: dict[str, Any], credential: tuple[tuple[str, str], ...]
) -> None:
    async def run() -> None:
        async with serving(echo()) as url:
            target = Upstream("up", f"{url}/v1", **upstream)
            async with ProviderClient.for_upstream(target, {}) as client:
                reply = await client.call("GET", "/v1/x", credential=credential, key_header="x-goog-api-key")
                headers = {name.lower(): value for name, value in json.loads(reply.body)["headers"].items()}
        assert headers["x-goog-api-key"] == "k1"
        assert not headers.keys() & {"authorization", "api-key", "x-api-key", "cookie"}

    asyncio.run(run())
