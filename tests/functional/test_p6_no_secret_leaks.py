"""P6: no key shows in a log, a metric, a header, an error body or a traceback, whatever fails."""

from __future__ import annotations

import base64
import json
import logging
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import quote, quote_plus

import pytest

from proxy.app import load_policies
from proxy.cli.main import main
from proxy.core.document import Document
from proxy.policy.model import BoundStep, Match, OnError, PolicySet, Route
from proxy.settings import Settings
from proxy.steps.step import Outcome, Step, StepContext
from proxy.upstream.target import make_target
from tests.support.chat import ANSWER, CHAT, CHAT_STREAM, PATH, chat_policy, delta
from tests.support.raw_client import RawAnswer, RawClient
from tests.support.raw_upstream import Call, RawUpstream
from tests.support.weir import weir
from tests.support.weir_process import WeirProcess, weir_process

UPSTREAM_KEY = "sk-upstream+key/1="
SECRETS = {
    "upstream": UPSTREAM_KEY,
    "authorization": "sk-caller+bearer/2=",
    "cookie": "session+cookie/3=",
    "x-api-key": "sk-caller+api/4=",
    "query": "AIza+query/5=",
    "body": "sk-body+key/6=",
    "prompt": "my password is hunter2+7",
    "proxy": "proxy+password/8",
    "header-match": "team+token/9",
}
TARGET = f"{PATH}?key={quote_plus(SECRETS['query'])}&api-version=1"
HEADERS = [
    ("Authorization", f"Bearer {SECRETS['authorization']}"),
    ("Cookie", f"s={SECRETS['cookie']}"),
    ("x-api-key", SECRETS["x-api-key"]),
    ("Proxy-Authorization", f"Basic {base64.b64encode(b'u:' + SECRETS['proxy'].encode()).decode()}"),
    ("x-team", SECRETS["header-match"]),
]


def leaked(*places: str | bytes) -> list[str]:
    """Return the names of the secrets that show anywhere, in any spelling."""
    text = "\n".join(place if isinstance(place, str) else place.decode("latin-1") for place in places)
    found = []
    for name, secret in SECRETS.items():
        encoded = base64.b64encode(f"user:{secret}".encode()).decode().rstrip("=")
        spellings = {secret, quote(secret), quote(secret, safe=""), quote_plus(secret), encoded}
        if any(spelling in text for spelling in spellings):
            found.append(name)
    return found


def body(is_stream: bool) -> bytes:
    """Return a request that carries secrets in its body, too."""
    fields = json.loads(CHAT_STREAM if is_stream else CHAT)
    fields |= {"api_key": SECRETS["body"], "metadata": {"token": SECRETS["body"]}, "user": SECRETS["body"]}
    fields["messages"][0]["content"] = SECRETS["prompt"]
    return json.dumps(fields).encode()


def shown(answer: RawAnswer) -> bytes:
    """Return all of an answer that a caller sees."""
    return b"\n".join([answer.reason, *(name + b": " + value for name, value in answer.headers), answer.body])


@contextmanager
def closed_port() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    yield port


@contextmanager
def greeting(data: bytes) -> Iterator[int]:
    """Accept connections, send something that is not TLS, and close."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            while True:
                try:
                    sock, _ = server.accept()
                except OSError:
                    return
                with sock:
                    sock.sendall(data)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield server.getsockname()[1]
        server.shutdown(socket.SHUT_RDWR)
        thread.join(5)


def everything_printed(process: WeirProcess, *answers: RawAnswer) -> list[str | bytes]:
    """Return all that the process has shown to anyone."""
    pages = [process.admin(path).body for path in ("/metrics", "/readyz", "/healthz")]
    return [process.output, process.log_file.read_text(), *pages, *map(shown, answers)]


DEBUG = {"PYTHONASYNCIODEBUG": "1", "PYTHONDEVMODE": "1", "WEIR_LOG_LEVEL": "debug", "KEY": UPSTREAM_KEY}
MATCHING = f"    match: {{path: {PATH}, headers: {{x-team: '{SECRETS['header-match']}'}}}}"


def policies(base_url: str, more: str = "") -> str:
    upstream = f"api_key: '${{KEY}}', timeouts: {{connect: 300ms, first_byte: 200ms, idle: 200ms}}{more}"
    text = chat_policy(base_url=base_url, upstream=upstream)
    return text.replace(f"    match: {{path: {PATH}}}", MATCHING)


def misbehaving(call: Call) -> None:
    """Fail in the way that the request's `x-fail` header asks for."""
    assert call.header("authorization") == f"Bearer {UPSTREAM_KEY}".encode(), "the key is in use"
    match (call.header("x-fail") or b"").decode():
        case "refused":
            call.json(b'{"error":{"message":"no"}}', b"400 Bad Request")
        case "unauthorized":
            call.json(b'{"error":{"message":"no"}}', b"401 Unauthorized")
        case "silent":
            call.wait_for_close(2)
        case "closed":
            call.close()
        case "reset":
            call.reset()
        case "garbage":
            call.send(b"\x00 " + call.head + call.body)
        case "midway":
            call.stream_head()
            call.chunk(delta("x"))
            call.reset()
        case "stalled":
            call.stream_head()
            call.chunk(delta("x"))
            call.wait_for_close(2)
        case _:
            call.json(ANSWER)


FAILURES = ["", "refused", "unauthorized", "silent", "closed", "reset", "garbage", "midway", "stalled"]
BAD_REQUESTS = [
    b"GET %b HTTP/1.1\r\nHost: a\r\n%bX Bad: 1\r\n\r\n",
    b"POST %b HTTP/1.1\r\nHost: a\r\n%bContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n",
    b"POST %b HTTP/1.1\r\nHost: a\r\n%bTransfer-Encoding: chunked\r\n\r\nzz\r\n",
    b"FOO %b HTTP/1.1\r\nHost: a\r\n%b\r\n",
    b"GET /..%b HTTP/1.1\r\nHost: a\r\n%b\r\n",
]


def test_failing_upstreams_and_requests_show_no_secret(tmp_path: Path) -> None:
    answers = []
    with RawUpstream(misbehaving) as upstream:
        with weir_process(tmp_path, None, policies=policies(upstream.url), environment=DEBUG) as process:
            for failure in FAILURES:
                for is_stream in (False, True):
                    with process.client() as client:
                        lines = [*HEADERS, ("X-Fail", failure)]
                        answers.append(client.request("POST", TARGET, body(is_stream), lines))
            lines_sent = "".join(f"{name}: {value}\r\n" for name, value in HEADERS).encode()
            for raw in BAD_REQUESTS:
                with process.client() as client:
                    client.send(raw % (TARGET.encode(), lines_sent))
                    answers.append(client.read_answer())
            shown_anywhere = everything_printed(process, *answers)
        seen = [call.header("x-fail") for call in upstream.calls]
    assert {failure.decode() for failure in seen if failure is not None} == set(FAILURES)
    assert {answer.status for answer in answers} == {200, 400, 401, 501, 502, 504}
    assert leaked(*shown_anywhere) == []


@pytest.mark.parametrize("kind", ["refused", "tls", "dns", "tunnel"])
def test_failing_connections_show_no_secret(tmp_path: Path, kind: str) -> None:
    with closed_port() as port, greeting(b"HTTP/1.1 407 No\r\n\r\n") as plain_port:
        via = f", proxy: 'http://user:{quote_plus(SECRETS['proxy'])}@127.0.0.1:{plain_port}'"
        urls = {
            "refused": f"http://127.0.0.1:{port}/v1",
            "tls": f"https://127.0.0.1:{plain_port}/v1",
            "dns": "http://a..b/v1",
            "tunnel": "https://upstream.test/v1",
        }
        text = policies(urls[kind], via if kind == "tunnel" else "")
        with weir_process(tmp_path, None, policies=text, environment=DEBUG) as process:
            answers = [process.client().request("POST", TARGET, body(False), HEADERS) for _ in range(2)]
            assert [answer.status for answer in answers] == [502, 502]
            assert leaked(*everything_printed(process, *answers)) == []


def test_a_policy_that_does_not_load_shows_no_secret(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "policy.yaml"
    file.write_text(
        "version: 1\n"
        f"upstreams: {{up: {{base_url: 'https://u:{UPSTREAM_KEY}@x/v1', api_key: {UPSTREAM_KEY} }}}}\n"
        f"routes: [{{name: x, bad: 1, match: {{headers: {{x-a: [{SECRETS['header-match']}, 012]}}}}}}]\n"
    )
    assert main(["check", str(file)]) == 1
    out, err = capfd.readouterr()
    assert "policy.yaml:2" in out + err
    assert leaked(out, err) == []


@dataclass(frozen=True, slots=True)
class _Nothing:
    """A configuration without options."""


def _leaky(document: Document, config: object, context: StepContext) -> Outcome:
    raise RuntimeError(f"cannot handle {document.raw!r} of {context} with {SECRETS['body']}")


def with_leaky_step(upstream: RawUpstream, on_error: OnError, counts: bool) -> PolicySet:
    """Return a policy whose only step crashes with all it knows in the message."""
    settings = Settings(upstream_url=upstream.url, upstream_key=UPSTREAM_KEY)
    policy_set = load_policies(settings, {})
    step = BoundStep(Step("leaky", _Nothing, _leaky, counts_tokens=counts), _Nothing())
    return replace(policy_set, routes=(Route("leaky", Match(), (step,), on_error=on_error),))


@pytest.mark.parametrize("on_error", [OnError.PASS, OnError.REJECT])
@pytest.mark.parametrize("is_long", [False, True])
def test_a_step_that_crashes_shows_no_secret(
    tmp_path: Path,
    on_error: OnError,
    is_long: bool,
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
) -> None:
    caplog.set_level(logging.DEBUG)
    sent = body(False) + (b" " * 100_000 if is_long else b"")
    with RawUpstream(lambda call: call.json(ANSWER)) as upstream:
        policy_set = with_leaky_step(upstream, on_error, is_long)
        with weir(tmp_path, upstream.url, policy_set) as proxy:
            answer = proxy.client().request("POST", TARGET, sent, HEADERS)
            record = proxy.log(1)[0]
            metrics = proxy.admin("/metrics")[1]
        bodies = [call.body for call in upstream.calls]
    out, err = capfd.readouterr()
    assert leaked(shown(answer), json.dumps(record), metrics, caplog.text, out, err) == []
    assert [step for step in record["steps"] if "RuntimeError" in step] == ["leaky;failed (RuntimeError)"]
    assert (record["route"], record["model"]) == ("leaky", "m")
    assert (answer.status, bodies) == ((200, [sent]) if on_error is OnError.PASS else (400, []))


def test_explaining_shows_no_secret_of_the_policy(tmp_path: Path) -> None:
    with RawUpstream(lambda call: call.json(ANSWER)) as upstream:
        text = policies(upstream.url)
        with weir(tmp_path, None, text, {"KEY": UPSTREAM_KEY}) as proxy:
            host, _, port = proxy.admin_url.removeprefix("http://").rpartition(":")
            with RawClient((host, int(port))) as client:
                explained = client.request("POST", f"/explain?path={PATH}", CHAT, [("x-team", "other")])
    assert explained.status == 200
    assert [lost["route"] for lost in json.loads(explained.body)["lost"]] == ["chat"]
    assert leaked(shown(explained)) == []


def test_settings_and_policies_show_no_secret_when_printed(tmp_path: Path) -> None:
    file = tmp_path / "policy.yaml"
    url = "http://127.0.0.1:1/v1"
    via = f", proxy: 'http://user:{quote_plus(SECRETS['proxy'])}@127.0.0.1:1'"
    file.write_text(policies(url.replace("127.0.0.1", "upstream.test"), via))
    settings = Settings(policies=(str(file),), upstream_url=url, upstream_key=UPSTREAM_KEY)
    upstream = load_policies(settings, {"KEY": UPSTREAM_KEY}).upstreams["up"]
    target = make_target(upstream, {})
    assert target.sender.credential is not None
    assert target.sender.proxy_authorization is not None
    printed = [shape(value) for value in (settings, upstream, target) for shape in (repr, str)]
    assert leaked(*printed) == []
