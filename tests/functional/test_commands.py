"""The commands as people and machines run them: processes with arguments, output, exit status and signals."""

from __future__ import annotations

import http.client
import json
import os
import re
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest

from proxy import __version__
from proxy.cli.main import main
from proxy.http.tls import server_context
from tests.support.certificates import Authority, Identity
from tests.support.chat import ANSWER, CHAT, CHAT_STREAM, DONE, PATH, chat_policy, delta, finish
from tests.support.raw_client import RawAnswer, RawClient
from tests.support.raw_upstream import Call, RawUpstream
from tests.support.weir import weir as in_thread
from tests.support.weir_process import ROOT, WeirProcess, weir_process

WEIR = [sys.executable, "-m", "proxy.cli.main"]
LIMIT_SECONDS = 20
BAD_POLICY = "version: 1\nroutes:\n  - name: chat\n    match: {path: /v1/x}\n    max_bdy: 1KiB\n"


def answer(call: Call) -> None:
    call.json(ANSWER)


def environment(**more: str) -> dict[str, str]:
    """Return an environment in which nothing configures Weir but `more`."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("WEIR_", "OPENAI_")) and not name.lower().endswith("_proxy")
    }
    return kept | {"PYTHONUNBUFFERED": "1"} | more


def weir(*arguments: str, stdin: bytes = b"", **variables: str) -> subprocess.CompletedProcess[bytes]:
    """Run a command to its end."""
    return subprocess.run(
        [*WEIR, *arguments],
        input=stdin,
        capture_output=True,
        cwd=ROOT,
        env=environment(**variables),
        timeout=LIMIT_SECONDS,
        check=False,
    )


@contextmanager
def started(*arguments: str, **variables: str) -> Iterator[WeirProcess]:
    """Run a command that serves until the block ends."""
    process = subprocess.Popen(
        [*WEIR, *arguments],
        cwd=ROOT,
        env=environment(**variables),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    running = WeirProcess(process, Path(os.devnull))
    try:
        running.wait_until_announced()
        yield running
    finally:
        running.close()


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


# --- usage --------------------------------------------------------------------------------------------------


def test_the_command_tells_its_version_and_its_commands(capsys: pytest.CaptureFixture[str]) -> None:
    told = weir("--version")
    assert (told.returncode, told.stdout) == (0, f"weir {__version__}\n".encode())
    with pytest.raises(SystemExit) as end:
        main(["--help"])
    assert end.value.code == 0
    said = capsys.readouterr().out
    for command in ("serve", "check", "explain", "schema", "init", "simulate"):
        assert command in said


USAGE = {
    "no command": ([], "the following arguments are required: COMMAND"),
    "unknown command": (["frobnicate"], "invalid choice: 'frobnicate'"),
    "unknown flag": (["serve", "--lissen", "x"], "unrecognized arguments: --lissen x"),
    "no address": (["serve", "--listen", "8080"], "argument --listen: '8080' is not HOST:PORT or unix:PATH"),
    "no port": (["serve", "--listen", "h:99999"], "argument --listen: 'h:99999' is not HOST:PORT"),
    "off": (["serve", "--listen", "off"], "argument --listen: 'off' is not HOST:PORT"),
    "no path": (["serve", "--listen", "unix:"], "argument --listen: unix: needs a path"),
    "no workers": (["serve", "--workers", "0"], "argument --workers: '0' is not a number of processes"),
    "no unit": (
        ["serve", "--drain-delay", "5"],
        "argument --drain-delay: a duration is a number with a unit",
    ),
    "no size": (["serve", "--max-head", "big"], "argument --max-head: a size is a number with a unit"),
    "no format": (["serve", "--log-format", "xml"], "argument --log-format: 'xml' is not one of json, text"),
    "key alone": (
        ["serve", "--tls-key", "k"],
        "weir serve: --tls-key and --tls-client-ca need --tls-certificate",
    ),
    "client CA alone": (["serve", "--tls-client-ca", "c"], "need --tls-certificate"),
    "nothing to check": (["check"], "the following arguments are required: PATH"),
    "no policies": (["explain", "r.json"], "the following arguments are required: --policies"),
    "no header": (["explain", "--policies", "x", "--header", "a", "-"], "--header 'a' is not 'NAME: VALUE'"),
    "no target": (["explain", "--policies", "x", "--path", "v1", "-"], "it must begin with a slash"),
    "no scenario": (["simulate", "--scenario", "/nonexistent"], "weir simulate: "),
    "no folder": (["init", "/nonexistent/x"], "weir init: /nonexistent/x: No such file or directory"),
}


@pytest.mark.parametrize("kind", USAGE)
def test_a_usage_error_says_what_is_wrong_and_exits_with_2(
    kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments, problem = USAGE[kind]
    try:
        status: object = main(arguments)
    except SystemExit as end:
        status = end.code
    out, err = capsys.readouterr()
    assert status == 2
    assert problem in err
    assert "Traceback" not in err
    assert out == ""


def test_a_usage_error_of_a_process_looks_the_same() -> None:
    ended = weir("serve", "--listen", "8080")
    assert (ended.returncode, ended.stdout) == (2, b"")
    assert ended.stderr.startswith(b"usage: weir serve")
    assert ended.stderr.endswith(b"argument --listen: '8080' is not HOST:PORT or unix:PATH\n")


@pytest.mark.parametrize(
    ("name", "value", "problem"),
    [
        ("WEIR_LISTEN", "nowhere", "argument --listen: 'nowhere' is not HOST:PORT"),
        ("WEIR_LOG_FORMAT", "xml", "argument --log-format: 'xml' is not one of json, text"),
        ("WEIR_DRAIN_TIMEOUT", "1", "argument --drain-timeout: a duration is"),
    ],
)
def test_the_environment_is_held_to_the_same_rules(
    name: str,
    value: str,
    problem: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(SystemExit) as end:
        main(["serve"])
    assert end.value.code == 2
    assert problem in capsys.readouterr().err


# --- check, schema, init ------------------------------------------------------------------------------------


def test_check_is_silent_about_nothing(good_policy: Path, bad_policy: Path) -> None:
    good = weir("check", str(good_policy))
    assert (good.returncode, good.stdout, good.stderr) == (0, b"weir check: good\n", b"")
    bad = weir("check", str(bad_policy))
    assert bad.returncode == 1
    where, *rest = bad.stdout.decode().splitlines()
    assert where == f"{bad_policy}:5:5: routes[0].max_bdy: unknown key max_bdy (did you mean max_body?)"
    assert rest == ["weir check: 1 errors, 0 warnings"]


def test_check_tells_machines_the_same(bad_policy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "--json", str(bad_policy)]) == 1
    (finding,) = json.loads(capsys.readouterr().out)
    assert finding == {
        "file": str(bad_policy),
        "line": 5,
        "column": 5,
        "path": "routes[0].max_bdy",
        "problem": "unknown key max_bdy",
        "hint": "did you mean max_body?",
        "severity": "error",
    }


def test_check_warns_without_failing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "shadowed.yaml"
    file.write_text(
        "version: 1\nroutes:\n  - {name: all, match: {}}\n  - {name: none, match: {path: /v1/x}}\n"
    )
    assert main(["check", str(file)]) == 0
    assert "weir check: 0 errors, 1 warnings" in capsys.readouterr().out
    assert main(["check", str(tmp_path / "nowhere")]) == 1
    assert "cannot be read" in capsys.readouterr().out


def test_schema_is_the_shipped_one() -> None:
    printed = weir("schema")
    assert (printed.returncode, printed.stderr) == (0, b"")
    assert printed.stdout == (ROOT / "policies" / "policy.schema.json").read_bytes()


def test_init_writes_a_policy_that_is_good_and_never_over_a_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "mine.yaml"
    written = weir("init", str(file))
    assert written.returncode == 0
    assert str(file) in written.stdout.decode()
    assert main(["check", str(file)]) == 0
    file.write_text("precious")
    assert main(["init", str(file)]) == 2
    assert capsys.readouterr().err == f"weir init: {file} exists already\n"
    assert file.read_text() == "precious"


def test_init_prints_where_asked(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["init", "-"]) == 0
    assert capsys.readouterr().out.startswith("# A Weir policy.")


# --- explain ------------------------------------------------------------------------------------------------


def test_explain_reads_standard_input_and_speaks_to_people_and_machines(good_policy: Path) -> None:
    said = weir("explain", "--policies", str(good_policy), "-", stdin=CHAT)
    text = said.stdout.decode()
    assert (said.returncode, said.stderr) == (0, b"")
    for line in (
        "route      chat",
        "step       cap_output: applied (set=9)",
        "urgency    interactive: route default",
        "lane       stream: interactive",
        '"max_tokens": 9',
    ):
        assert line in text
    told = weir("explain", "--json", "--policies", str(good_policy), "-", stdin=CHAT)
    assert told.returncode == 0
    facts = json.loads(told.stdout)
    assert facts["route"] == "chat"
    assert facts["tokens"]["before"] > 0
    assert told.stdout.rstrip(b"\n").endswith(b'"body":' + CHAT[:-1] + b',"max_tokens":9}}')


def test_explain_tells_of_refusals_and_of_broken_policies_with_1(
    tmp_path: Path, bad_policy: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    strict = tmp_path / "strict.yaml"
    strict.write_text(chat_policy("steps: [{set_params: {seed: {forbid: true}}}]"))
    request = tmp_path / "r.json"
    request.write_bytes(CHAT[:-1] + b',"seed":1}')
    assert main(["explain", "--policies", str(strict), str(request)]) == 1
    assert capsys.readouterr().out.startswith("rejected   400 rejected_by_policy: ")
    assert main(["explain", "--policies", str(bad_policy), str(request)]) == 1
    assert f"{bad_policy}:5:5: " in capsys.readouterr().err
    assert main(["explain", "--policies", str(strict), str(tmp_path / "nowhere.json")]) == 2
    assert "nowhere.json: No such file or directory" in capsys.readouterr().err


# --- simulate -----------------------------------------------------------------------------------------------


def test_simulate_answers_until_it_is_told_to_stop(tmp_path: Path) -> None:
    scenario = tmp_path / "scenario.yaml"
    scenario.write_text("timing: {}\n")
    with started("simulate", "--listen", "127.0.0.1:0", "--scenario", str(scenario)) as process:
        assert re.search(
            r"^weir simulate: listening on http://127\.0\.0\.1:\d+$", process.output, re.MULTILINE
        )
        got = process.client().request("POST", PATH, CHAT, [("x-sim-tokens", "2")])
        assert got.status == 200
        assert json.loads(got.body)["usage"]["completion_tokens"] == 2
        process.signal(signal.SIGTERM)
        assert process.wait() == 0
    assert "Traceback" not in process.output


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
    ended = weir("serve", "--listen", "127.0.0.1:0", "--admin", "off")
    assert (ended.returncode, ended.stdout) == (1, b"")
    assert b"WEIR_UPSTREAM and OPENAI_API_KEY are not set" in ended.stderr
    assert b"--demo" in ended.stderr


def test_serve_refuses_policies_that_are_not_good(bad_policy: Path) -> None:
    ended = weir("serve", "--policies", str(bad_policy), WEIR_UPSTREAM="http://127.0.0.1:9/v1")
    assert (ended.returncode, ended.stdout) == (1, b"")
    assert ended.stderr.decode().startswith(f"{bad_policy}:5:5: routes[0].max_bdy: unknown key max_bdy")


def test_a_port_in_use_is_a_clear_error(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        used = f"127.0.0.1:{other.getsockname()[1]}"
        arguments = ["--listen", used, "--admin", "127.0.0.1:0"]
        ended = weir("serve", *arguments, WEIR_UPSTREAM="http://127.0.0.1:9/v1")
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


# --- TLS ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("certificates"))


def https_address(process: WeirProcess) -> tuple[str, int]:
    match = re.search(r"listening on https://([\d.]+):(\d+)", process.output)
    assert match is not None, process.output
    return match[1], int(match[2])


def ask_over_tls(
    address: tuple[str, int], authority: Authority, shown: Identity | None = None, body: bytes = CHAT
) -> tuple[int, bytes]:
    context = ssl.create_default_context(cafile=str(authority.certificate))
    if shown is not None:
        context.load_cert_chain(shown.certificate, shown.key)
    connection = http.client.HTTPSConnection(*address, context=context, timeout=5)
    try:
        connection.request("POST", PATH, body, {"content-type": "application/json"})
        response = connection.getresponse()
        return response.status, response.read()
    finally:
        connection.close()


def tls_served(upstream: RawUpstream, *options: str) -> AbstractContextManager[WeirProcess]:
    listen = ["--listen", "127.0.0.1:0", "--admin", "off", "--access-log", "off"]
    return started("serve", *listen, *options, WEIR_UPSTREAM=upstream.url)


def test_serve_speaks_tls(authority: Authority) -> None:
    def script(call: Call) -> None:
        if b'"stream":true' in call.body:
            call.stream_head()
            call.chunk(delta("hel"))
            time.sleep(0.02)
            call.chunk(delta("lo") + finish() + DONE)
            call.end_chunks()
        else:
            call.json(ANSWER)

    server = authority.server()
    with RawUpstream(script) as upstream:
        with tls_served(upstream, "--tls-certificate", str(server.both)) as process:
            address = https_address(process)
            assert ask_over_tls(address, authority) == (200, ANSWER)
            stream = delta("hel") + delta("lo") + finish() + DONE
            assert ask_over_tls(address, authority, body=CHAT_STREAM) == (200, stream)
            large = CHAT[:-1] + b',"x":"%b"}' % (b"y" * 3_000_000)
            assert ask_over_tls(address, authority, body=large) == (200, ANSWER)
            with pytest.raises(ssl.SSLCertVerificationError):
                ask_over_tls(address, Authority(authority.certificate.parent, "another authority"))
            with RawClient(address, 5) as plain:
                plain.send(b"GET /v1/models HTTP/1.1\r\nHost: a\r\n\r\n")
                assert plain.receive() == b"", "plain HTTP is not understood here"
            assert ask_over_tls(address, authority) == (200, ANSWER), "nobody else was disturbed"
            process.signal(signal.SIGTERM)
            assert process.wait() == 0
        assert upstream.calls[2].body == large
    assert "Traceback" not in process.output


def test_serve_asks_callers_for_a_certificate_where_told_to(authority: Authority) -> None:
    server = authority.server("mutual")
    stranger = Authority(authority.certificate.parent, "strangers").client("stranger")
    options = ["--tls-certificate", str(server.certificate), "--tls-key", str(server.key)]
    options += ["--tls-client-ca", str(authority.certificate)]
    with RawUpstream(answer) as upstream, tls_served(upstream, *options) as process:
        address = https_address(process)
        assert ask_over_tls(address, authority, authority.client()) == (200, ANSWER)
        for shown in (None, stranger):
            # TLS 1.3 tells the caller only after its first bytes: as an alert, or as a closed connection.
            with pytest.raises((ssl.SSLError, ConnectionError)):
                ask_over_tls(address, authority, shown)
        assert len(upstream.calls) == 1


def test_a_certificate_that_cannot_be_used_is_named(authority: Authority, tmp_path: Path) -> None:
    server, other = authority.server("unusable"), authority.server("other")
    nowhere, nonsense = tmp_path / "nowhere.pem", tmp_path / "nonsense.pem"
    nonsense.write_text("no PEM")
    for named, certificate, key, client_ca in (
        (nowhere, nowhere, nowhere, None),
        (nonsense, nonsense, nonsense, None),
        (server.certificate, server.certificate, other.key, None),
        (nonsense, server.both, server.both, str(nonsense)),
    ):
        with pytest.raises(OSError, match=f"certificate file {named} or its key: "):
            server_context(str(certificate), str(key), client_ca)
    ended = weir(
        *("serve", "--listen", "127.0.0.1:0", "--admin", "off", "--tls-certificate", str(nowhere)),
        WEIR_UPSTREAM="http://127.0.0.1:9/v1",
    )
    assert (ended.returncode, ended.stdout) == (2, b"")
    problem = f"certificate file {nowhere} or its key: No such file or directory"
    assert ended.stderr == f"weir serve: {problem}\n".encode()
