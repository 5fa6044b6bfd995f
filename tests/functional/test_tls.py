"""The data port behind TLS: certificates, callers that must show one, and files that cannot be used."""

from __future__ import annotations

import http.client
import re
import signal
import socket
import ssl
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from proxy.http.tls import server_context
from tests.support.certificates import Authority, Identity
from tests.support.chat import ANSWER, CHAT, CHAT_STREAM, DONE, PATH, chat_policy, delta, finish
from tests.support.command import run_weir, started
from tests.support.raw_client import RawClient
from tests.support.raw_upstream import Call, RawUpstream
from tests.support.weir_process import WeirProcess


def answer(call: Call) -> None:
    call.json(ANSWER)


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


def test_callers_with_other_certificates_share_nothing(authority: Authority, tmp_path: Path) -> None:
    server = authority.server("apart")
    people = [authority.client("one"), authority.client("two")]
    options = ["--tls-certificate", str(server.certificate), "--tls-key", str(server.key)]
    options += ["--tls-client-ca", str(authority.certificate)]
    have_come = threading.Barrier(2)

    def script(call: Call) -> None:
        have_come.wait(5)
        call.json(ANSWER)

    body = CHAT[:-1] + b',"temperature":0}'
    with RawUpstream(script) as upstream:
        policies = tmp_path / "weir.yaml"
        policies.write_text(chat_policy("urgency: {default: soon}", base_url=upstream.url))
        with tls_served(upstream, *options, "--policies", str(policies)) as process:
            address = https_address(process)
            with ThreadPoolExecutor(2) as callers:
                asked = [callers.submit(ask_over_tls, address, authority, shown, body) for shown in people]
                assert [each.result() for each in asked] == [(200, ANSWER)] * 2
        assert len(upstream.calls) == 2


def upload_over_tls(address: tuple[str, int], authority: Authority, pieces_count: int) -> bytes:
    """Send a body in pieces whatever is said meanwhile, then return all that was said."""
    context = ssl.create_default_context(cafile=str(authority.certificate))
    piece = b" " * 100_000
    head = f"POST {PATH} HTTP/1.1\r\nHost: a\r\nContent-Length: {pieces_count * len(piece)}\r\n\r\n"
    with (
        socket.create_connection(address, timeout=5) as plain,
        context.wrap_socket(plain, server_hostname=address[0]) as caller,
    ):
        caller.sendall(head.encode())
        for _ in range(pieces_count):
            caller.sendall(piece)
            time.sleep(0.01)
        said = b""
        while b"}}" not in said and (data := caller.recv(65536)):
            said += data
    return said


def test_a_refusal_in_the_middle_of_an_upload_reaches_its_caller(
    authority: Authority, tmp_path: Path
) -> None:
    server = authority.server("refusing")
    with RawUpstream(answer) as upstream:
        policies = tmp_path / "weir.yaml"
        lines = ("max_body: 64KiB", "on_oversize: reject")
        policies.write_text(chat_policy(*lines, base_url=upstream.url))
        options = ["--tls-certificate", str(server.both), "--policies", str(policies)]
        with tls_served(upstream, *options) as process:
            said = upload_over_tls(https_address(process), authority, pieces_count=40)
            assert said.startswith(b"HTTP/1.1 413 ")
            assert b"body_too_large" in said
        assert not upstream.calls


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
    ended = run_weir(
        *("serve", "--listen", "127.0.0.1:0", "--admin", "off", "--tls-certificate", str(nowhere)),
        WEIR_UPSTREAM="http://127.0.0.1:9/v1",
    )
    assert (ended.returncode, ended.stdout) == (2, b"")
    problem = f"certificate file {nowhere} or its key: No such file or directory"
    assert ended.stderr == f"weir serve: {problem}\n".encode()
