"""The way to Redis or Valkey: one server, Sentinel or Cluster, and what goes wrong on it.

    redis://HOST:PORT/DB  rediss://…  unix://PATH          one server
    redis+sentinel://HOST:PORT,HOST:PORT/SERVICE[/DB]      the master that Sentinel names
    redis+cluster://HOST:PORT,HOST:PORT                    a Cluster

Owns connections, scripts and errors. Times out quickly: a store that does not answer is gone, and whoever
asks has better things to do (`breaker`). Everything that fails is a `StoreUnavailable`. More calls than there
are connections wait for their turn as long as the server answers; the first failure is that of all who wait.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from importlib import resources
from typing import Any, TypeVar
from urllib.parse import unquote, urlsplit

from redis.asyncio import BlockingConnectionPool, Redis, RedisCluster, Sentinel
from redis.asyncio.cluster import ClusterNode
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import NoScriptError, ReadOnlyError, RedisError
from redis.exceptions import TimeoutError as RedisTimeoutError

from proxy.jobs.store import StoreUnavailable

_T = TypeVar("_T")

CONNECT_SECONDS = 1.0
ANSWER_SECONDS = 2.0
_MOST_CALLS = 32
"""How many calls go on at once; the server works on one after the other anyway."""

_SPARE_CONNECTIONS = 4
_MESSAGE_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class ScriptSet:
    """The scripts of one store: files in the folder `lua/` of a package, each with `prelude` before it.

    subject  what the store is to operators
    """

    package: str
    subject: str
    names: tuple[str, ...]

    def texts(self) -> dict[str, str]:
        """Return the scripts by name, as a server gets them."""
        folder = resources.files(self.package) / "lua"
        prelude = (folder / "prelude.lua").read_text(encoding="utf-8")
        return {name: prelude + (folder / f"{name}.lua").read_text(encoding="utf-8") for name in self.names}


JOB_SCRIPTS = ScriptSet(
    "proxy.jobs",
    "job store",
    ("accept", "book", "candidates", "claim", "claim_notices", "claim_one", "claim_role", "delete",
     "lease", "leave", "move", "noted", "pack", "split"),
)  # fmt: skip


class RedisClient:
    """A client that runs the scripts of one store. `url` may hold a password and is never shown."""

    def __init__(
        self, url: str, answer_seconds: float = ANSWER_SECONDS, scripts: ScriptSet = JOB_SCRIPTS
    ) -> None:
        self._url = url
        self._subject = scripts.subject
        self._answer_seconds = answer_seconds
        self._client: Any = None
        self._turns = asyncio.Semaphore(_MOST_CALLS)
        self._failures = 0
        self._finders: tuple[Any, ...] = ()
        self._scripts = {
            # SHA-1 is how Redis names scripts.
            name: (hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest(), text)
            for name, text in scripts.texts().items()
        }

    @property
    def is_cluster(self) -> bool:
        """Whether the keys lie on several servers."""
        return self._url.startswith("redis+cluster://")

    async def open(self) -> None:
        """Connect. Raises `StoreUnavailable`, and `ValueError` for a URL that is none of ours."""
        self._client, self._finders = _connected(self._url, self._answer_seconds)
        try:
            await self.call(lambda client: client.ping())
        except StoreUnavailable:
            await self.close()
            raise

    async def close(self) -> None:
        """Close every connection."""
        if self._client is not None:
            clients = (self._client, *self._finders)
            self._client, self._finders = None, ()
            for client in clients:
                try:
                    await client.aclose()
                except (RedisError, OSError):
                    # It is gone already.
                    pass

    async def call(self, ask: Callable[[Any], Awaitable[_T]]) -> _T:
        """Ask the server something."""
        failures = self._failures
        async with self._turns:
            if self._client is None:
                raise StoreUnavailable(f"the {self._subject} is not open")
            if self._failures != failures:
                raise StoreUnavailable(f"the {self._subject} failed while this call waited for its turn")
            try:
                return await self._ask(ask)
            except (ConnectionError, RedisConnectionError, RedisTimeoutError, TimeoutError) as error:
                self._failures += 1
                raise StoreUnavailable(f"the {self._subject}: {_shown(error)}") from error
            except (RedisError, OSError) as error:
                raise StoreUnavailable(f"the {self._subject}: {_shown(error)}") from error

    async def _ask(self, ask: Callable[[Any], Awaitable[_T]]) -> _T:
        with _cancellation_heeded():
            try:
                return await ask(self._client)
            except ReadOnlyError:
                # A former master after a failover: with fresh connections we meet the new one.
                await self._forget_connections()
                return await ask(self._client)

    async def _forget_connections(self) -> None:
        if isinstance(self._client, Redis):
            await self._client.connection_pool.disconnect(inuse_connections=False)

    async def run(self, script: str, prefix: str, arguments: Sequence[str | bytes]) -> Any:
        """Run a script. One that the server does not know, or may not keep, is sent as text."""
        digest, text = self._scripts[script]

        async def ask(client: Any) -> Any:
            try:
                return await client.evalsha(digest, 1, prefix, *arguments)
            except NoScriptError:
                return await client.eval(text, 1, prefix, *arguments)

        return await self.call(ask)

    async def time(self) -> float:
        """Return what the clock of the server says (of any one of a Cluster), in seconds since the epoch."""
        where = {"target_nodes": RedisCluster.RANDOM} if self.is_cluster else {}
        told: Any = await self.call(lambda client: client.execute_command("TIME", **where))
        # Some releases of the client name the node that answered.
        seconds, microseconds = next(iter(told.values())) if isinstance(told, dict) else told
        return float(seconds) + float(microseconds) / 1e6

    async def pipeline(self, commands: Sequence[tuple[str | bytes | int, ...]]) -> list[Any]:
        """Run commands that do not depend on each other, in one round trip per server."""

        async def ask(client: Any) -> list[Any]:
            pipe = client.pipeline() if self.is_cluster else client.pipeline(transaction=False)
            for command in commands:
                pipe.execute_command(*command)
            return list(await pipe.execute())

        return await self.call(ask) if commands else []

    @asynccontextmanager
    async def listening(self, *channels: str) -> AsyncIterator[AsyncIterator[tuple[str, bytes]]]:
        """Subscribe; yields (channel, message) until the connection breaks, as `StoreUnavailable`."""
        if self._client is None:
            raise StoreUnavailable(f"the {self._subject} is not open")
        pubsub = self._client.pubsub()
        try:
            await self._within_limit(pubsub.subscribe(*channels))
            yield _messages(pubsub)
        except (RedisError, OSError, TimeoutError) as error:
            raise StoreUnavailable(f"the {self._subject}: {_shown(error)}") from error
        finally:
            try:
                await pubsub.aclose()
            except (RedisError, OSError):
                pass

    async def _within_limit(self, awaitable: Awaitable[_T]) -> _T:
        async with asyncio.timeout(self._answer_seconds + CONNECT_SECONDS):
            return await awaitable


@contextmanager
def _cancellation_heeded() -> Iterator[None]:
    """Raise `CancelledError` where the block was cancelled and ended as if it had not been.

    The driver sends by `asyncio.wait_for`, which up to Python 3.11 drops a cancellation that comes in the
    moment in which its work is done.
    """
    task = asyncio.current_task()
    before = 0 if task is None else task.cancelling()
    yield
    if task is not None and task.cancelling() > before:
        raise asyncio.CancelledError


async def _messages(pubsub: Any) -> AsyncIterator[tuple[str, bytes]]:
    while True:
        message = await pubsub.get_message(ignore_subscribe_messages=True, timeout=_MESSAGE_SECONDS)
        if message is not None and message.get("type") == "message":
            yield message["channel"].decode(), message["data"]


def _connected(url: str, answer_seconds: float) -> tuple[Any, tuple[Any, ...]]:
    """Return the client that answers, and those that only find it."""
    options: dict[str, Any] = {
        "socket_timeout": answer_seconds,
        "socket_connect_timeout": CONNECT_SECONDS,
        # A pooled connection may have died; an answer that is late will not come sooner by asking again.
        "retry": Retry(NoBackoff(), 1, supported_errors=(RedisConnectionError,)),
    }
    if url.startswith("redis+sentinel://"):
        return _sentinel(url, options)
    if url.startswith("redis+cluster://"):
        parts = urlsplit(url)
        nodes = [ClusterNode(host, port) for host, port in _hosts(parts.netloc.rpartition("@")[2])]
        login = _login(parts.username, parts.password)
        return RedisCluster(startup_nodes=nodes, **options, **login), ()
    if not url.startswith(("redis://", "rediss://", "unix://")):
        raise ValueError("a Redis URL begins with redis://, rediss://, unix://, redis+sentinel:// or "
                         "redis+cluster://")  # fmt: skip
    pool = BlockingConnectionPool.from_url(
        url, max_connections=_MOST_CALLS + _SPARE_CONNECTIONS, timeout=answer_seconds, **options
    )
    return Redis.from_pool(pool), ()


def _sentinel(url: str, options: dict[str, Any]) -> tuple[Any, tuple[Any, ...]]:
    parts = urlsplit(url)
    service, _, database = parts.path.strip("/").partition("/")
    if not service:
        raise ValueError("a Sentinel URL names its service: redis+sentinel://HOST:PORT,HOST:PORT/SERVICE")
    login = _login(parts.username, parts.password)
    hosts = _hosts(parts.netloc.rpartition("@")[2])
    sentinel = Sentinel(hosts, **options, **login)  # type: ignore[no-untyped-call]  # redis-py leaves this class without types
    return sentinel.master_for(service, db=int(database or 0)), tuple(sentinel.sentinels)


def _login(username: str | None, password: str | None) -> dict[str, Any]:
    given = {"username": username, "password": password}
    return {name: unquote(value) for name, value in given.items() if value}


def _hosts(netloc: str) -> list[tuple[str, int]]:
    hosts = []
    for part in netloc.split(","):
        host, _, port = part.rpartition(":")
        if not host or not port.isdigit():
            raise ValueError(f"{part!r} is not HOST:PORT")
        hosts.append((host.strip("[]"), int(port)))
    return hosts


def _shown(error: BaseException) -> str:
    # Messages of the client name hosts and commands, never a password.
    said = str(error).strip()
    return f"{type(error).__name__}: {said}" if said else type(error).__name__
