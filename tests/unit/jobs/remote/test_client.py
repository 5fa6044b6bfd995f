"""Which URLs are understood, and that scripts are complete."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import pytest

from proxy.jobs.redis_store import RedisStore
from proxy.jobs.remote.client import SCRIPTS

LUA = Path(__file__).resolve().parents[4] / "proxy" / "jobs" / "lua"


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


def test_every_script_is_used_and_says_what_it_takes() -> None:
    files = {path.stem for path in LUA.glob("*.lua")}
    assert files == {*SCRIPTS, "prelude"}
    for path in LUA.glob("*.lua"):
        text = path.read_text(encoding="utf-8")
        assert "-- KEYS[1]" in text, path
        asked = set(
            re.findall(r"ARGV\[(\d)\]", "\n".join(re.sub(r"--.*", "", line) for line in text.splitlines()))
        )
        told = set(re.findall(r"ARGV\[(\d)", "\n".join(re.findall(r"^--.*", text, re.MULTILINE))))
        assert asked <= told, path


def test_scripts_touch_only_keys_behind_the_prefix() -> None:
    for path in LUA.glob("*.lua"):
        text = re.sub(r"--.*", "", path.read_text(encoding="utf-8"))
        for first in re.findall(r"redis\.call\('[A-Z]+',\s*([^,)]+)", text):
            assert first.startswith(("P ..", "key", "index", "attach", "found[i].index", "only")), (
                path,
                first,
            )
