"""The servers that the contracts of stores are tested against, one of each kind per test process."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from tests.support.redis_server import RedisServer, ServerOf, running, running_cluster


@pytest.fixture(scope="session")
def redis_server() -> Iterator[ServerOf]:
    """Return the server of a kind, started when it is first asked for."""
    with ExitStack() as stack:
        servers: dict[str, RedisServer] = {}

        def server_of(kind: str) -> RedisServer:
            if kind not in servers:
                server = running_cluster() if kind == "cluster" else running(kind)
                servers[kind] = stack.enter_context(server)
            return servers[kind]

        yield server_of
