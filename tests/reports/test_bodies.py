"""Bodies that are not JSON, or are large: multipart and uploads (reports B75-B78)."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest

from tests.support.chat import ANSWER, CHAT, PATH, chat_policy
from tests.support.raw_client import RawClient
from tests.support.raw_upstream import Call, RawUpstream
from tests.support.weir import weir
from tests.support.weir_process import weir_process

EVERYTHING = "version: 1\nroutes: [{name: all, match: {path: '/v1/*'}, steps: [{cap_output: {max: 50}}]}]\n"
POLICIES = pytest.mark.parametrize("policies", [None, EVERYTHING], ids=["unmatched", "matched"])
MIB = 1024 * 1024


def answer_ok(call: Call) -> None:
    call.json(ANSWER)


def part(name: bytes, value: bytes, more: bytes = b"") -> bytes:
    return b'Content-Disposition: form-data; name="%b"%b\r\n\r\n%b' % (name, more, value)


def form(boundary: bytes, *parts: bytes) -> bytes:
    return b"".join(b"--%b\r\n%b\r\n" % (boundary, text) for text in parts) + b"--%b--\r\n" % boundary


FILE = part(b"file", b"\x00\xff\r\n--x\r\nOggS", b'; filename="a.ogg"\r\nContent-Type: audio/ogg')
MODEL = part(b"model", b"whisper-1")


def posts(tmp_path: Path, policies: str | None, path: str, content_type: str, body: bytes) -> Call:
    """Post a body and return the call as the upstream saw it."""
    with RawUpstream(answer_ok) as upstream, weir(tmp_path, upstream.url, policies) as proxy:
        answer = proxy.client().request("POST", path, body, [("Content-Type", content_type)])
        assert (answer.status, answer.body) == (200, ANSWER)
        return upstream.calls[0]


# B75
@POLICIES
@pytest.mark.parametrize(
    ("boundary", "content_type"),
    [
        (b"------------------------a1b2c3", "multipart/form-data; boundary=------------------------a1b2c3"),
        (b"a b:c", 'multipart/form-data; boundary="a b:c"'),
        (b"x=y=", 'Multipart/Form-Data;boundary="x=y="; charset=utf-8'),
        (b"'()+_,-./:=?", 'multipart/form-data; boundary="\'()+_,-./:=?"'),
    ],
)
@pytest.mark.parametrize("parts", [(FILE, MODEL), (MODEL, FILE)], ids=["file-first", "model-first"])
def test_a_form_upload_keeps_its_bytes_and_its_boundary(
    tmp_path: Path, policies: str | None, boundary: bytes, content_type: str, parts: tuple[bytes, bytes]
) -> None:
    body = form(boundary, *parts)
    call = posts(tmp_path, policies, "/v1/audio/transcriptions", content_type, body)
    assert call.body == body
    assert call.header("content-type") == content_type.encode()
    assert call.header("content-length") == b"%d" % len(body)


# B76
@POLICIES
@pytest.mark.parametrize(
    ("content_type", "body"),
    [
        ("multipart/form-data; boundary=nope", b"junk \x00\xff --nop\r\n"),
        ("multipart/form-data; boundary=nope", form(b"nope", FILE, MODEL)[:-30]),
        ("multipart/form-data", form(b"nope", FILE, MODEL)),
        ("multipart/form-data; boundary=", form(b"", MODEL)),
        ("multipart/form-data; boundary=nope", b""),
    ],
    ids=["junk", "truncated", "no-boundary", "empty-boundary", "empty"],
)
def test_a_malformed_form_is_the_upstreams_to_judge(
    tmp_path: Path, policies: str | None, content_type: str, body: bytes
) -> None:
    call = posts(tmp_path, policies, "/v1/audio/transcriptions", content_type, body)
    assert (call.body, call.header("content-type")) == (body, content_type.encode())


# B77
@pytest.mark.parametrize("policies", [None, chat_policy(), chat_policy("steps: [{cap_output: {max: 50}}]")])
def test_a_long_chat_passes(tmp_path: Path, policies: str | None) -> None:
    body = CHAT.replace(b'"hi"', b'"%b"' % (b"x" * 1_300_000))
    call = posts(tmp_path, policies, PATH, "application/json", body)
    assert call.body == body


# B77
@pytest.mark.parametrize("is_chunked", [False, True])
@pytest.mark.parametrize(
    ("route_lines", "status"),
    [
        (["max_body: 64KiB"], 200),
        (["max_body: 64KiB", "on_oversize: reject"], 413),
        (["max_body: 64KiB", "steps: [{cap_output: {max: 50}}]"], 413),
        (["max_body: 64KiB", "steps: [{cap_output: {max: 50}}]", "on_oversize: pass"], 200),
        (["max_body: 'off'", "steps: [{cap_output: {max: 50}}]"], 200),
    ],
    ids=["passes", "reject", "enforcing", "pass", "unlimited"],
)
def test_the_limit_of_a_route_decides_about_a_large_body(
    tmp_path: Path, is_chunked: bool, route_lines: list[str], status: int
) -> None:
    body = CHAT.replace(b'"hi"', b'"%b"' % (b"x" * 200_000))
    lines = [("Transfer-Encoding", "chunked")] if is_chunked else []
    sent = body
    if is_chunked:
        sent = b"".join(b"%x\r\n%b\r\n" % (len(p), p) for p in (body[:50_000], body[50_000:])) + b"0\r\n\r\n"
    with RawUpstream(answer_ok) as upstream, weir(tmp_path, upstream.url, chat_policy(*route_lines)) as proxy:
        with proxy.client() as client:
            answer = client.request("POST", PATH, sent, lines)
        assert proxy.client().request("POST", PATH, CHAT).status == 200, "others are unaffected"
        bodies = [call.body for call in upstream.calls]
    assert answer.status == status
    if status == 413:
        error = json.loads(answer.body)["error"]
        assert error["code"] == "body_too_large"
        assert "65536" in error["message"]
        assert answer.header("content-type") == "application/json"
        assert bodies == [CHAT]
    else:
        assert bodies == [body, CHAT]


# B77
def test_a_declared_body_over_the_limit_is_refused_before_it_is_sent(tmp_path: Path) -> None:
    policies = chat_policy("max_body: 64KiB", "on_oversize: reject")
    with RawUpstream(answer_ok) as upstream, weir(tmp_path, upstream.url, policies) as proxy:
        with proxy.client() as client:
            lines = [("Content-Length", "104857600"), ("Expect", "100-continue")]
            client.send_request("POST", PATH, None, lines)
            answer = client.read_answer()
        assert upstream.calls == []
    assert answer.status == 413


def upload(client: RawClient, size_bytes: int) -> str:
    """Send a body of pseudo-random bytes; return its hash."""
    piece = hashlib.sha512(b"seed").digest() * 1024
    lines = [("Content-Type", "multipart/form-data; boundary=b"), ("Content-Length", str(size_bytes))]
    client.send_request("POST", "/v1/files", None, lines)
    digest = hashlib.sha256()
    for _ in range(size_bytes // len(piece)):
        digest.update(piece)
        client.send(piece)
    return digest.hexdigest()


def hash_upload(call: Call) -> None:
    """Read a body without keeping it and answer with its length and hash."""
    size_bytes = int(call.header("content-length") or 0)
    digest = hashlib.sha256()
    count = 0
    while count < size_bytes:
        data = call.receive()
        count += len(data)
        digest.update(data)
    call.json(b'{"bytes":%d,"hash":"%b"}' % (count, digest.hexdigest().encode()))


# B77
@pytest.mark.parametrize("policies", [None, EVERYTHING.replace("match: ", "on_oversize: pass, match: ")])
def test_a_hundred_megabyte_upload_streams_in_little_memory(tmp_path: Path, policies: str | None) -> None:
    with (
        RawUpstream(hash_upload, reads_body=False) as upstream,
        weir_process(tmp_path, upstream.url, policies=policies) as process,
    ):
        assert process.client().request("GET", "/v1/models").status == 200
        before = process.peak_memory_bytes()
        client = process.client()
        digest = upload(client, 100 * MIB)
        answer = client.read_answer()
        grown = process.peak_memory_bytes() - before
    assert json.loads(answer.body) == {"bytes": 100 * MIB, "hash": digest}
    assert grown < 16 * MIB


# B78
@POLICIES
def test_repeated_parts_of_a_form_all_arrive_in_order(tmp_path: Path, policies: str | None) -> None:
    parts = [
        *(part(b"image[]", b"\x89PNG%d\x00" % n, b'; filename="%d.png"' % n) for n in range(3)),
        part(b"image", b"one"),
        part(b"image", b"two"),
        part(b"mask", b"\x89PNG\xff", "; filename=\"маска.png\"; filename*=UTF-8''%D0%BC.png".encode()),
        part(b"prompt", "кот в 帽子 🐈".encode()),
        part(b"n", b"1"),
        part(b"n", b"2"),
    ]
    body = form(b"edge", *parts)
    call = posts(tmp_path, policies, "/v1/images/edits", "multipart/form-data; boundary=edge", body)
    assert call.body == body
