"""Whoever dies while results are recorded and files uploaded leaves all of what was acknowledged."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import uuid
from pathlib import Path

import pytest

from proxy.core.clock import ManualClock
from tests.support.dying_recorder import chunk_of, line_of, store_at
from tests.support.redis_server import ServerOf

ROOT = Path(__file__).resolve().parents[3]


def said_before_death(where: str, lines: int) -> list[list[str]]:
    command = [sys.executable, "-m", "tests.support.dying_recorder", where]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        said = [process.stdout.readline() for _ in range(lines)]
        process.kill()
        said += [line for line in process.stdout.read().splitlines(keepends=True) if line.endswith("\n")]
    return [line.split() for line in said]


async def check_heritage(where: str, said: list[list[str]]) -> None:
    ((_, batch_id, output_file_id),) = [words for words in said if words[0] == "batch"]
    clock = ManualClock()
    clock.advance(3600.0)
    store = store_at(where, clock)
    await store.open()
    try:
        (batch,) = await store.claim("heir", 60.0, 9)
        assert batch.id == batch_id
        lines = sorted(await store.recorded_lines(batch_id))
        acknowledged = [int(words[1]) for words in said if words[0] == "line"]
        # What the last call wrote may be there though nobody was told.
        assert lines[: len(acknowledged)] == acknowledged
        assert len(lines) <= len(acknowledged) + 1
        assert batch.progress.completed == batch.progress.output_chunks == len(lines)
        for index in range(len(lines)):
            assert await store.chunk(output_file_id, index) == line_of(index)
        assert await store.chunk(output_file_id, len(lines)) is None
        for _, file_id, number in (words for words in said if words[0] == "chunk"):
            assert await store.chunk(file_id, int(number)) == chunk_of(int(number))
    finally:
        await store.close()


@pytest.mark.parametrize("lines", [1, 50, 211])
@pytest.mark.parametrize("kind", ["sqlite", "valkey"])
def test_what_was_acknowledged_survives_a_kill_at_any_moment(
    kind: str, lines: int, tmp_path: Path, redis_server: ServerOf
) -> None:
    where = str(tmp_path / "jobs.db.batches")
    if kind != "sqlite":
        where = f"{uuid.uuid4().hex}@{redis_server(kind).url}"
    said = said_before_death(where, lines)
    assert len(said) >= lines
    asyncio.run(check_heritage(where, said))
