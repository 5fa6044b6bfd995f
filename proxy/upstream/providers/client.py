"""Calls that Weir makes to an upstream on its own behalf: batches, files, single deferred requests.

Owns one aiohttp session per upstream, built from the same configuration as the data path (address, TLS, unix
socket, forward proxy, credential header), and one error. It never uses the data path's connections, never
follows a redirect, keeps no cookies, and repeats nothing.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from types import TracebackType

import aiohttp
from yarl import URL

from proxy.core.upstream import Upstream
from proxy.http.deadlines import NEVER
from proxy.upstream.request_head import CREDENTIAL_HEADERS
from proxy.upstream.target import Target, make_target

Fields = Sequence[tuple[str, str]]

MAX_ANSWER_BYTES = 256 * 1024 * 1024
_CHUNK_BYTES = 64 * 1024
_SENT_BEFORE_ANSWER = (
    aiohttp.ClientConnectorError,
    aiohttp.ClientProxyConnectionError,
    aiohttp.ConnectionTimeoutError,
    aiohttp.InvalidURL,
)


class CallFailed(Exception):
    """There is no complete answer. `may_have_happened`: the upstream may have done what it was asked for."""

    def __init__(self, message: str, *, may_have_happened: bool) -> None:
        super().__init__(message)
        self.may_have_happened = may_have_happened


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer, decompressed. Names of header fields are lower-case."""

    status: int
    headers: Mapping[str, str]
    body: bytes = field(repr=False, default=b"")


@dataclass(frozen=True, slots=True)
class Upload:
    """A body of known length that comes in pieces."""

    size_bytes: int
    pieces: AsyncIterator[bytes]


class ProviderClient:
    """One upstream. Create it in the event loop, and close it."""

    def __init__(self, target: Target) -> None:
        self.target = target
        address = target.address
        is_tls = address.tls is not None
        host = target.sender.host.decode("latin-1")
        self._origin = f"{'https' if is_tls else 'http'}://{host}"
        self._tls: ssl.SSLContext | bool = address.tls if address.tls is not None else True
        self._proxy, self._proxy_headers = _forward_proxy(target)
        # A connection of its own for each call: a kept one that died tells nothing about what was done.
        if address.unix_socket is not None:
            connector: aiohttp.BaseConnector = aiohttp.UnixConnector(
                address.unix_socket, force_close=True, limit=0
            )
        else:
            connector = aiohttp.TCPConnector(force_close=True, limit=0)
        self._session = aiohttp.ClientSession(
            connector=connector, cookie_jar=aiohttp.DummyCookieJar(), headers={"User-Agent": "weir"}
        )

    @classmethod
    def for_upstream(cls, upstream: Upstream, environment: Mapping[str, str]) -> ProviderClient:
        """Return a client for a configured upstream. Raises ValueError or OSError as `make_target` does."""
        return cls(make_target(upstream, environment))

    async def __aenter__(self) -> ProviderClient:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close every connection."""
        await self._session.close()

    async def call(
        self,
        method: str,
        path: str,
        *,
        headers: Fields = (),
        credential: Fields = (),
        body: bytes | Upload | None = None,
        answer_seconds: float | None = None,
        total_seconds: float | None = None,
        key_header: str | None = None,
    ) -> Reply:
        """Send a request and read the whole answer, whatever its status. Raises `CallFailed`.

        `path` is `/v1/…` with its query, encoded. `credential` counts where the upstream has no key.
        `answer_seconds` bounds the wait for the first byte instead of the upstream's own limit. `key_header`
        takes the key bare, instead of the provider's usual header.
        """
        async with self.stream(
            method,
            path,
            headers=headers,
            credential=credential,
            body=body,
            answer_seconds=answer_seconds,
            total_seconds=total_seconds,
            key_header=key_header,
        ) as (reply, pieces):
            parts: list[bytes] = []
            size = 0
            async for piece in pieces:
                size += len(piece)
                if size > MAX_ANSWER_BYTES:
                    raise CallFailed("the answer is too large", may_have_happened=True)
                parts.append(piece)
            return Reply(reply.status, reply.headers, b"".join(parts))

    @asynccontextmanager
    async def stream(
        self,
        method: str,
        path: str,
        *,
        headers: Fields = (),
        credential: Fields = (),
        body: bytes | Upload | None = None,
        answer_seconds: float | None = None,
        total_seconds: float | None = None,
        key_header: str | None = None,
    ) -> AsyncIterator[tuple[Reply, AsyncIterator[bytes]]]:
        """Send a request and give its head and the pieces of its body. Raises `CallFailed`."""
        try:
            async with self._session.request(
                method,
                URL(self._origin + self._path(path), encoded=True),
                headers=self._fields(headers, credential, body, key_header),
                data=body.pieces if isinstance(body, Upload) else body,
                allow_redirects=False,
                ssl=self._tls,
                server_hostname=self.target.address.server_name,
                proxy=self._proxy,
                proxy_headers=self._proxy_headers,
                timeout=self._timeout(answer_seconds, total_seconds),
            ) as response:
                fields = {name.lower(): value for name, value in response.headers.items()}
                yield Reply(response.status, fields), response.content.iter_chunked(_CHUNK_BYTES)
        except _SENT_BEFORE_ANSWER as problem:
            raise CallFailed(_said(problem), may_have_happened=False) from None
        except (aiohttp.ClientError, TimeoutError, OSError) as problem:
            raise CallFailed(_said(problem), may_have_happened=True) from None

    def _path(self, path: str) -> str:
        # The prefix for a forward proxy is aiohttp's own business.
        target = self.target.request_target(path.encode("ascii")).decode("ascii")
        return target.removeprefix(self.target.absolute_prefix.decode("latin-1"))

    def _fields(
        self,
        headers: Fields,
        credential: Fields,
        body: bytes | Upload | None,
        key_header: str | None,
    ) -> list[tuple[str, str]]:
        own = self.target.sender.credential
        refused = {name.decode() for name in CREDENTIAL_HEADERS} | {"host", "content-length"}
        fields = [(name, value) for name, value in headers if name.lower() not in refused]
        if own is not None:
            credential = [(own[1].decode("latin-1"), own[2].decode("latin-1"))]
        fields.extend(credential if key_header is None else _bare(credential, key_header))
        if self._proxy is not None and self.target.address.tunnel is None and self._proxy_headers:
            # Without a tunnel it is a field of the request itself, which aiohttp leaves to us.
            fields.extend(self._proxy_headers.items())
        if isinstance(body, Upload):
            fields.append(("Content-Length", str(body.size_bytes)))
        return fields

    def _timeout(self, answer_seconds: float | None, total_seconds: float | None) -> aiohttp.ClientTimeout:
        limits = self.target.upstream.timeouts
        waiting = self.target.wait.first_byte if answer_seconds is None else answer_seconds
        return aiohttp.ClientTimeout(
            total=total_seconds,
            sock_connect=limits.connect,
            sock_read=None if waiting == NEVER else waiting,
        )


def _bare(credential: Fields, key_header: str) -> Fields:
    """Return a credential with its key in another header; one that is no key stays as it is."""
    for name, value in credential:
        if name.lower() == "authorization" and value[:7].lower() == "bearer ":
            return [(key_header, value[7:].strip())]
        if name.lower() in ("api-key", "x-api-key"):
            return [(key_header, value)]
    return credential


def _said(problem: BaseException) -> str:
    """Return what happened without what was sent: messages of aiohttp may quote headers and URLs."""
    if isinstance(problem, asyncio.TimeoutError):
        return "no answer in time"
    reason = problem.strerror if isinstance(problem, OSError) and problem.strerror else ""
    return f"{type(problem).__name__}{': ' if reason else ''}{reason}"


def _forward_proxy(target: Target) -> tuple[str | None, dict[str, str] | None]:
    tunnel = target.address.tunnel
    if tunnel is not None:
        authorization = tunnel.authorization
        host, port = tunnel.host, tunnel.port
    elif target.absolute_prefix:
        host, port = target.address.host, target.address.port
        field_ = target.sender.proxy_authorization
        authorization = None if field_ is None else field_[2].decode("latin-1")
    else:
        return None, None
    shown = f"[{host}]" if ":" in host else host
    fields = None if authorization is None else {"Proxy-Authorization": authorization}
    return f"http://{shown}:{port}", fields
