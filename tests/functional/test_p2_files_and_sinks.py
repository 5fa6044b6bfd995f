"""P2, continued: policies on reload, the access log and the shipped vocabularies fail; requests do not."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.chat import ANSWER, CHAT, CHAT_STREAM, DONE, PATH, chat_policy, delta, finish
from tests.support.raw_client import RawClient
from tests.support.raw_upstream import Call, RawUpstream
from tests.support.weir import RunningWeir, weir
from tests.support.weir_process import ROOT, weir_process

STREAM = delta("hel") + delta("lo") + finish() + DONE


def answer(call: Call) -> None:
    if b'"stream":true' in call.body:
        call.stream_head()
        call.chunk(STREAM)
        call.end_chunks()
    else:
        call.json(ANSWER)


@pytest.fixture
def upstream() -> Iterator[RawUpstream]:
    with RawUpstream(answer) as server:
        yield server


LONG_CHAT = json.dumps(
    {"model": "gpt-4o", "messages": [{"role": "user", "content": "word " * 900} for _ in range(9)]}
).encode()

# --- policies -----------------------------------------------------------------------------------------------

BROKEN_POLICIES = {
    "no YAML": "version: 1\nroutes: [",
    "unknown key": chat_policy("stepz: []"),
    "empty": "",
    "binary": "\0\0\0",
    "missing secret": chat_policy(
        "upstream: up", base_url="http://127.0.0.1:1/v1", upstream="api_key: '${NO}'"
    ),
    "unusable certificate": chat_policy(
        base_url="https://127.0.0.1:1/v1", upstream="tls: {ca: /nonexistent/ca.pem}"
    ),
}


def wait_until(holds: Callable[[], bool], seconds: float = 5.0) -> None:
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.mark.parametrize("kind", BROKEN_POLICIES)
def test_a_policy_that_breaks_on_reload_leaves_the_old_one_in_force(
    tmp_path: Path, upstream: RawUpstream, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "policy.yaml"
    file.write_text(chat_policy("steps: [{cap_output: {default: 9}}]"))
    with weir(tmp_path, upstream.url, file) as proxy:
        client = proxy.client()
        before = client.request("POST", PATH, CHAT)
        file.write_text(BROKEN_POLICIES[kind])
        proxy.call(proxy.app.reload)
        wait_until(lambda: proxy.metric("weir_policy_rejected") == 1)
        after = client.request("POST", PATH, CHAT)
        assert proxy.metric("weir_policy_reloads_total", result="rejected") >= 1
        assert proxy.metric("weir_policy_info", version=before.header("x-weir-policy") or "") == 1
        assert proxy.admin("/readyz")[0] == 200
        file.write_text(chat_policy("steps: [{cap_output: {default: 7}}]"))
        proxy.call(proxy.app.reload)
        wait_until(lambda: proxy.metric("weir_policy_rejected") == 0)
        assert client.request("POST", PATH, CHAT).header("x-weir-policy") != before.header("x-weir-policy")
    assert after.header("x-weir-policy") == before.header("x-weir-policy")
    caps = [json.loads(call.body)["max_tokens"] for call in upstream.calls]
    assert caps == [9, 9, 7]
    problems = [record for record in caplog.records if record.levelname == "ERROR"]
    assert problems, "nothing was logged"
    assert all("polic" in record.getMessage() for record in problems)


# --- the access log -----------------------------------------------------------------------------------------


def ask_many(proxy: RunningWeir, count: int = 30) -> float:
    """Send requests; return how long the slowest one took."""
    slowest_seconds = 0.0
    client = proxy.client()
    for number in range(count):
        begin = time.monotonic()
        assert client.request("POST", PATH, CHAT_STREAM if number % 2 else CHAT).status == 200
        slowest_seconds = max(slowest_seconds, time.monotonic() - begin)
    return slowest_seconds


def test_a_full_disk_under_the_log_delays_nobody(tmp_path: Path, upstream: RawUpstream) -> None:
    with weir(tmp_path, upstream.url, chat_policy(), access_log="/dev/full") as proxy:
        assert ask_many(proxy) < 2
        wait_until(lambda: proxy.metric("weir_access_log_dropped_total") == 30)
        assert proxy.admin("/readyz")[0] == 200


@contextmanager
def serving_into(stdout: int, upstream: RawUpstream) -> Iterator[subprocess.Popen[bytes]]:
    """Serve with the access log on standard output, which is `stdout`."""
    command = [sys.executable, "-m", "proxy.cli.main", "serve", "--listen", "127.0.0.1:0"]
    command += ["--admin", "127.0.0.1:0", "--drain-timeout", "1s"]
    environment = os.environ | {"WEIR_UPSTREAM": upstream.url}
    process = subprocess.Popen(
        command, cwd=ROOT, env=environment, stdout=stdout, stderr=subprocess.PIPE, pipesize=-1
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.wait(10)
        assert process.stderr is not None
        process.stderr.close()


def announced(reader: int) -> dict[str, tuple[str, int]]:
    """Read where it listens; what it says afterwards stays unread."""
    text = b""
    while b"listening on" not in text or not text.endswith(b"\n"):
        data = os.read(reader, 4096)
        assert data, "Weir ended instead of serving"
        text += data
    found = {}
    for line in text.decode().splitlines():
        what, _, where = line.partition(" on http://")
        host, _, port = where.rpartition(":")
        found[what.removeprefix("weir: ")] = (host, int(port))
    return found


def dropped_lines(admin_address: tuple[str, int]) -> float:
    with RawClient(admin_address) as admin:
        page = admin.request("GET", "/metrics").body.decode()
    return float(page.split("\nweir_access_log_dropped_total ")[1].split()[0])


@pytest.mark.parametrize("kind", ["nobody reads it", "its reader is gone"])
def test_standard_output_that_fails_delays_nobody_and_the_process_ends_in_order(
    upstream: RawUpstream, kind: str
) -> None:
    reader, writer = os.pipe()
    with serving_into(writer, upstream) as process:
        os.close(writer)
        addresses = announced(reader)
        if kind == "its reader is gone":
            os.close(reader)
        long_path = f"/v1/{'x' * 1500}"
        with RawClient(addresses["listening"]) as client:
            for _ in range(150):
                begin = time.monotonic()
                assert client.request("GET", long_path).status == 200
                assert time.monotonic() - begin < 2
        if kind == "its reader is gone":
            wait_until(lambda: dropped_lines(addresses["admin"]) == 150)
        else:
            assert dropped_lines(addresses["admin"]) == 0
        process.send_signal(signal.SIGTERM)
        assert process.wait(8) == 0
        assert process.stderr is not None
        assert b"Traceback" not in process.stderr.read()
    if kind == "nobody reads it":
        os.close(reader)


# --- vocabularies -------------------------------------------------------------------------------------------


def test_without_its_vocabularies_weir_starts_says_so_and_serves(
    tmp_path: Path, upstream: RawUpstream
) -> None:
    bare = tmp_path / "bare"
    shutil.copytree(ROOT / "proxy", bare / "proxy", ignore=shutil.ignore_patterns("data", "__pycache__"))
    environment = {"PYTHONPATH": str(bare), "PYTHONSAFEPATH": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    policies = chat_policy("steps: [{trim_history: {budget: 30000}}]")
    with weir_process(tmp_path, upstream.url, policies=policies, environment=environment) as process:
        assert "vocabulary o200k_base cannot be read" in process.output
        assert process.client().request("POST", PATH, LONG_CHAT).body == ANSWER
        page = process.admin("/metrics").body.decode()
    assert upstream.calls[0].body == LONG_CHAT
    assert float(page.split("\nweir_token_count_fallbacks_total ")[1].split()[0]) > 0
