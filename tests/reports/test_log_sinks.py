"""A log that cannot be written delays nobody and says what it lost (report B126)."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from proxy.observe.access_log import AccessLog
from tests.support.chat import ANSWER, CHAT, PATH
from tests.support.raw_upstream import Call, RawUpstream
from tests.support.weir import weir

LONG = "x" * 500
"""Stands in the path, and so in the log: a pipe holds a hundred such lines."""


def answer_ok(call: Call) -> None:
    call.json(ANSWER)


@pytest.fixture
def blocked_sink(tmp_path: Path) -> Iterator[tuple[str, int]]:
    """A pipe that nobody reads, and the end from which it can be read."""
    path = tmp_path / "sink"
    os.mkfifo(path)
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    yield str(path), reader
    os.close(reader)


def drain(reader: int, is_enough: Callable[[bytes], bool]) -> list[dict[str, object]]:
    """Read the pipe until there is enough, and up to the end of a line; return the records."""
    read = b""
    deadline = time.monotonic() + 5
    while not is_enough(read) or not read.endswith(b"\n"):
        assert time.monotonic() < deadline
        try:
            read += os.read(reader, 1 << 20)
        except BlockingIOError:
            time.sleep(0.005)
    return [json.loads(line) for line in read.splitlines()]


# B126
def test_a_blocked_sink_delays_nobody_and_loses_nothing_that_it_can_hold(
    tmp_path: Path, blocked_sink: tuple[str, int]
) -> None:
    path, reader = blocked_sink
    with RawUpstream(answer_ok) as upstream, weir(tmp_path, upstream.url, access_log=path) as proxy:
        client = proxy.client()
        slowest_seconds = 0.0
        for _ in range(300):
            begin = time.monotonic()
            assert client.request("GET", f"/v1/{LONG}").status == 200
            slowest_seconds = max(slowest_seconds, time.monotonic() - begin)
        assert slowest_seconds < 0.3
        assert proxy.metric("weir_access_log_dropped_total") == 0
        records = drain(reader, lambda read: read.count(b"\n") >= 300)
    assert [record["status"] for record in records] == [200] * 300


# B126
def test_what_a_blocked_sink_cannot_hold_is_counted_and_marked(blocked_sink: tuple[str, int]) -> None:
    path, reader = blocked_sink
    descriptor = os.open(path, os.O_WRONLY)
    log = AccessLog(descriptor)
    count = 1000
    begin = time.monotonic()
    for number in range(count):
        log.write({"number": number, "text": "x" * 10_000})
    assert time.monotonic() - begin < 1
    dropped = log.dropped
    assert 0 < dropped < count
    records = drain(reader, lambda read: b"dropped_lines" in read)
    log.write({"number": count})
    records += drain(reader, lambda read: b"%d" % count in read)
    log.close()
    os.close(descriptor)
    assert sum(int(str(record.get("dropped_lines", 0))) for record in records) == dropped
    numbers = [record["number"] for record in records if "number" in record]
    assert numbers == [*range(count - dropped), count], "in order, and whole again once the sink is"


# B126
def test_a_sink_that_is_gone_delays_nobody_and_drops_are_counted(
    tmp_path: Path, blocked_sink: tuple[str, int]
) -> None:
    path, reader = blocked_sink
    with RawUpstream(answer_ok) as upstream, weir(tmp_path, upstream.url, access_log=path) as proxy:
        os.dup2(os.open(os.devnull, os.O_RDONLY), reader)
        for _ in range(5):
            assert proxy.client().request("POST", PATH, CHAT).status == 200
        deadline = time.monotonic() + 2
        while proxy.metric("weir_access_log_dropped_total") < 5:
            assert time.monotonic() < deadline
            time.sleep(0.01)
