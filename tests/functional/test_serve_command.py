"""`weir serve` as a process: what it announces, what it obeys, how it ends."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import threading
import time
from pathlib import Path

import pytest

from tests.support.chat import ANSWER, CHAT, CHAT_STREAM, DONE, PATH, chat_policy, delta, finish
from tests.support.command import BAD_POLICY, run_weir, started
from tests.support.raw_client import RawAnswer, RawClient
from tests.support.raw_upstream import Call, RawUpstream
from tests.support.weir import weir as in_thread
from tests.support.weir_process import WeirProcess, weir_process


def answer(call: Call) -> None:
    call.json(ANSWER)


@pytest.fixture
def bad_policy(tmp_path: Path) -> Path:
    file = tmp_path / "bad.yaml"
    file.write_text(BAD_POLICY)
    return file


@pytest.fixture
def good_policy(tmp_path: Path) -> Path:
    file = tmp_path / "good.yaml"
    file.write_text(chat_policy("steps: [{cap_output: {default: 9}}]"))
    return file


# --- serve --------------------------------------------------------------------------------------------------


def test_serve_announces_where_it_listens_once_it_accepts_and_logs_to_standard_output(
    good_policy: Path,
) -> None:
    with RawUpstream(answer) as upstream:
        arguments = ["--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--policies", str(good_policy)]
        with started("serve", *arguments, WEIR_UPSTREAM=upstream.url) as process:
            admin, listening = process.output.splitlines()[:2]
            assert re.fullmatch(r"weir: admin on http://127\.0\.0\.1:\d+", admin)
            assert re.fullmatch(r"weir: listening on http://127\.0\.0\.1:\d+", listening)
            got = process.client().request("POST", PATH, CHAT)
            assert (got.status, got.header("x-weir-route")) == (200, "chat")
            assert [process.admin(path).status for path in ("/healthz", "/readyz", "/metrics")] == [200] * 3
            process.signal(signal.SIGTERM)
            assert process.wait() == 0
    (record,) = [json.loads(line) for line in process.output.splitlines() if line.startswith("{")]
    assert record["request_id"] == got.header("x-weir-request-id")


def test_serve_listens_on_unix_sockets_set_by_the_environment(tmp_path: Path) -> None:
    data, admin, log = tmp_path / "data", tmp_path / "admin", tmp_path / "log"
    policies = [tmp_path / "one.yaml", tmp_path / "two.yaml"]
    for name, policy in zip(("one", "two"), policies, strict=True):
        policy.write_text(f"version: 1\nroutes: [{{name: {name}, match: {{path: /v1/{name}}}}}]\n")
    variables = {
        "WEIR_LISTEN": f"unix:{data}",
        "WEIR_ADMIN": f"unix:{admin}",
        "WEIR_ACCESS_LOG": str(log),
        "WEIR_LOG_FORMAT": "text",
        "WEIR_POLICIES": os.pathsep.join(map(str, policies)),
        "WEIR_KEEP_ALIVE": "",
    }
    with (
        RawUpstream(answer) as upstream,
        started("serve", WEIR_UPSTREAM=upstream.url, **variables) as process,
    ):
        assert process.output.splitlines() == [
            f"weir: admin on http+unix://{admin}",
            f"weir: listening on http+unix://{data}",
        ]
        for name in ("one", "two"):
            with RawClient(str(data)) as client:
                assert client.request("GET", f"/v1/{name}").header("x-weir-route") == name
        with RawClient(str(admin)) as client:
            assert client.request("GET", "/readyz").body == b"ready\n"
        process.signal(signal.SIGTERM)
        assert process.wait() == 0
    assert not data.exists()
    assert not admin.exists()
    assert len(log.read_text().splitlines()) == 2
    assert " route=two " in log.read_text()


def test_a_flag_comes_before_the_environment_and_the_key_of_openai_is_for_openai_only() -> None:
    variables = {
        "WEIR_LISTEN": "unix:/nonexistent/s",
        "WEIR_ADMIN": "127.0.0.1:0",
        "WEIR_ACCESS_LOG": "/nonexistent/log",
        "OPENAI_API_KEY": "sk-openai",
    }
    flags = ["--listen", "127.0.0.1:0", "--admin", "off", "--access-log", "off"]
    with (
        RawUpstream(answer) as upstream,
        started("serve", *flags, WEIR_UPSTREAM=upstream.url, **variables) as process,
    ):
        assert "admin on" not in process.output
        got = process.client().request("GET", "/v1/models", None, [("Authorization", "Bearer mine")])
        assert got.status == 200
        (call,) = upstream.calls
    assert call.header("authorization") == b"Bearer mine"


def test_demo_serves_without_any_upstream() -> None:
    with started("serve", "--demo", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0") as process:
        assert "weir: no upstream configured: the simulated provider answers" in process.output
        got = process.client().request("POST", PATH, CHAT, [("x-sim-tokens", "2")])
        assert got.status == 200
        assert json.loads(got.body)["usage"]["completion_tokens"] == 2
        process.signal(signal.SIGINT)
        assert process.wait() == 0
    assert "Traceback" not in process.output


def test_serve_without_any_upstream_says_how_to_name_one() -> None:
    ended = run_weir("serve", "--listen", "127.0.0.1:0", "--admin", "off")
    assert (ended.returncode, ended.stdout) == (1, b"")
    assert b"WEIR_UPSTREAM and OPENAI_API_KEY are not set" in ended.stderr
    assert b"--demo" in ended.stderr


def test_serve_refuses_policies_that_are_not_good(bad_policy: Path) -> None:
    ended = run_weir("serve", "--policies", str(bad_policy), WEIR_UPSTREAM="http://127.0.0.1:9/v1")
    assert (ended.returncode, ended.stdout) == (1, b"")
    assert ended.stderr.decode().startswith(f"{bad_policy}:5:5: routes[0].max_bdy: unknown key max_bdy")


def test_a_port_in_use_is_a_clear_error(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        used = f"127.0.0.1:{other.getsockname()[1]}"
        arguments = ["--listen", used, "--admin", "127.0.0.1:0"]
        ended = run_weir("serve", *arguments, WEIR_UPSTREAM="http://127.0.0.1:9/v1")
        problem = f"cannot listen on {used}: Address already in use"
        assert (ended.returncode, ended.stdout) == (2, b"")
        assert ended.stderr == f"weir serve: {problem}\n".encode()
        with pytest.raises(OSError, match=problem), in_thread(tmp_path, "http://127.0.0.1:9/v1", admin=used):
            pass


# --- signals ------------------------------------------------------------------------------------------------


class Held:
    """Answers streams in two halves, the second when told."""

    def __init__(self) -> None:
        self.may_end = threading.Event()

    def __call__(self, call: Call) -> None:
        call.stream_head()
        call.chunk(delta("hel"))
        self.may_end.wait(10)
        call.chunk(delta("lo") + finish() + DONE)
        call.end_chunks()


def begin_stream(process: WeirProcess) -> RawClient:
    client = process.client()
    client.send_request("POST", PATH, CHAT_STREAM)
    assert client.read_head().status == 200
    return client


def not_ready(process: WeirProcess) -> RawAnswer:
    """Wait until readiness has turned; return what it says."""
    deadline = time.monotonic() + 5
    while (readiness := process.admin("/readyz")).status == 200:
        assert time.monotonic() < deadline
        time.sleep(0.005)
    return readiness


def test_a_signal_lets_what_is_in_progress_end_and_the_process_exits_with_0(tmp_path: Path) -> None:
    script = Held()
    with RawUpstream(script) as upstream, weir_process(tmp_path, upstream.url) as process:
        client = begin_stream(process)
        process.signal(signal.SIGTERM)
        assert (not_ready(process).status, not_ready(process).body) == (503, b"not ready\n")
        assert process.admin("/healthz").status == 200
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(process.address, 0.5)
        script.may_end.set()
        body = b"".join(piece or b"CUT" for piece in client.chunks())
        assert process.wait() == 0
    assert body == delta("hel") + delta("lo") + finish() + DONE
    assert "draining" in process.output
    assert "Traceback" not in process.output


def test_a_second_signal_ends_the_process_at_once(tmp_path: Path) -> None:
    options = ["--drain-delay", "15s", "--drain-timeout", "15s"]
    with RawUpstream(Held()) as upstream, weir_process(tmp_path, upstream.url, *options) as process:
        client = begin_stream(process)
        process.signal(signal.SIGTERM)
        not_ready(process)
        process.signal(signal.SIGTERM)
        begin = time.monotonic()
        assert process.wait(5) == 0
        assert time.monotonic() - begin < 3
        assert list(client.chunks())[-1] is None, "what was broken off cannot pass for whole"
    (record,) = [json.loads(line) for line in process.log_file.read_text().splitlines()]
    assert record["error"] == "client_closed"
