"""Which URLs are understood, that scripts are complete, and how more calls than connections take turns."""

from __future__ import annotations

import asyncio
import re
import signal
from pathlib import Path
from typing import Any

import pytest

from proxy.batch_server.redis_records import BATCH_SCRIPTS
from proxy.jobs.redis_store import RedisStore
from proxy.jobs.remote.client import JOB_SCRIPTS, RedisClient, ScriptSet
from proxy.jobs.store import StoreUnavailable
from tests.support.redis_server import running

ROOT = Path(__file__).resolve().parents[4]
SETS = (JOB_SCRIPTS, BATCH_SCRIPTS)


def scripts_of(scripts: ScriptSet) -> list[Path]:
    return sorted((ROOT / scripts.package.replace(".", "/") / "lua").glob("*.lua"))


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("http://127.0.0.1", "begins with redis://"),
        ("redis+sentinel://127.0.0.1:26379", "names its service"),
        ("redis+sentinel://127.0.0.1/mymaster", "HOST:PORT"),
        ("redis+cluster://user:geheim@127.0.0.1", "HOST:PORT"),
    ],
)
def test_other_urls_are_refused_without_a_password_being_shown(url: str, said: str) -> None:
    async def test() -> None:
        with pytest.raises(ValueError, match=said) as caught:
            await RedisStore(url).open()
        assert "geheim" not in str(caught.value)

    asyncio.run(test())


@pytest.mark.parametrize("scripts", SETS, ids=lambda scripts: scripts.package)
def test_every_script_is_used_and_says_what_it_takes(scripts: ScriptSet) -> None:
    assert {path.stem for path in scripts_of(scripts)} == {*scripts.names, "prelude"}
    for path in scripts_of(scripts):
        text = path.read_text(encoding="utf-8")
        assert "-- KEYS[1]" in text, path
        asked = set(
            re.findall(r"ARGV\[(\d)\]", "\n".join(re.sub(r"--.*", "", line) for line in text.splitlines()))
        )
        told = set(re.findall(r"ARGV\[(\d)", "\n".join(re.findall(r"^--.*", text, re.MULTILINE))))
        assert asked <= told, path


@pytest.mark.parametrize("scripts", SETS, ids=lambda scripts: scripts.package)
def test_scripts_touch_only_keys_behind_the_prefix(scripts: ScriptSet) -> None:
    for path in scripts_of(scripts):
        text = re.sub(r"--.*", "", path.read_text(encoding="utf-8"))
        for first in re.findall(r"redis\.call\('[A-Z]+',\s*([^,)]+)", text):
            assert first.startswith(("P ..", "key", "index", "alike", "found[i].index", "only")), (
                path,
                first,
            )


def test_more_calls_than_connections_wait_for_their_turn_however_long_it_takes() -> None:
    async def test(url: str) -> None:
        client = RedisClient(url, answer_seconds=0.3)
        await client.open()

        async def slow(client_: Any) -> Any:
            return await client_.execute_command("BLPOP", "nothing", 0.1)

        assert await asyncio.gather(*(client.call(slow) for _ in range(150))) == 150 * [None]
        await client.close()

    with running("valkey") as server:
        asyncio.run(test(server.url))


def test_who_waits_for_a_turn_is_told_as_soon_as_the_server_does_not_answer() -> None:
    async def test(url: str, freeze: Any) -> None:
        client = RedisClient(url, answer_seconds=0.2)
        await client.open()
        freeze()
        asked = 0

        async def ping(client_: Any) -> Any:
            nonlocal asked
            asked += 1
            return await client_.ping()

        ended = await asyncio.gather(*(client.call(ping) for _ in range(300)), return_exceptions=True)
        assert all(isinstance(each, StoreUnavailable) for each in ended)
        assert asked < 100
        await client.close()

    with running("valkey") as server:
        try:
            asyncio.run(test(server.url, lambda: server.signal(signal.SIGSTOP)))
        finally:
            server.signal(signal.SIGCONT)
