"""Uploads to Weir's own batch API: forms of every kind, at every pace, whole and cut off."""

from __future__ import annotations

import gzip
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.batch_server import LINES, NOWHERE, ApiCaller, api_records, refusal, served_weir, told
from tests.support.forms import CONTENT_TYPE, field, file_part, form, upload_form
from tests.support.raw_client import RawAnswer, RawClient
from tests.support.redis_server import running as redis_running
from tests.support.weir import RunningWeir
from tests.support.weir_process import weir_process

PURPOSE = field("purpose", "batch")
MIB = 1024 * 1024


@pytest.fixture(scope="module")
def proxy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningWeir]:
    with served_weir(tmp_path_factory.mktemp("uploads")) as running:
        yield running


@pytest.fixture
def alice(proxy: RunningWeir, request: pytest.FixtureRequest) -> ApiCaller:
    """A caller whom no other test knows."""
    return ApiCaller(proxy, f"alice of {request.node.name}".encode().hex())


def _head(alice: ApiCaller, *more: str) -> bytes:
    lines = ["POST /v1/files HTTP/1.1", "Host: weir", f"Content-Type: {CONTENT_TYPE}", *more]
    lines += [f"{name}: {value}" for name, value in alice.headers]
    return "\r\n".join([*lines, "", ""]).encode()


def _chunked(body: bytes, size: int) -> Iterator[bytes]:
    for start in range(0, len(body), size):
        piece = body[start : start + size]
        yield b"%x\r\n%b\r\n" % (len(piece), piece)
    yield b"0\r\n\r\n"


@pytest.mark.parametrize(
    "parts",
    [
        (PURPOSE, file_part(LINES)),
        (file_part(LINES), PURPOSE),
        (
            field("expires_after[anchor]", "created_at"),
            file_part(LINES),
            field("expires_after[seconds]", "3600"),
            PURPOSE,
        ),
        (PURPOSE, file_part(LINES, more="Content-Type: application/jsonl\r\n")),
        (PURPOSE, file_part(LINES, more="Content-Transfer-Encoding: binary\r\n")),
    ],
    ids=["purpose first", "file first", "expiry around", "typed", "binary"],
)
def test_takes_the_parts_of_a_form_in_any_order(alice: ApiCaller, parts: tuple[bytes, ...]) -> None:
    kept = told(alice.post_form(form(*parts)))
    assert alice.ask("GET", f"/v1/files/{kept['id']}/content").body == LINES
    lifetime = kept["expires_at"] - kept["created_at"]
    assert lifetime == (3600 if len(parts) == 4 else 30 * 24 * 3600)


@pytest.mark.parametrize(
    ("filename", "shown"),
    [
        (None, "file.jsonl"),
        ("", "file.jsonl"),
        ("../../etc/passwd", "passwd"),
        ("C:\\\\x\\\\in.jsonl", "in.jsonl"),
        ("größe 🚀.jsonl", "größe 🚀.jsonl"),
        ("x" * 400, "x" * 255),
    ],
)
def test_a_file_is_called_as_its_caller_called_it(alice: ApiCaller, filename: str | None, shown: str) -> None:
    kept = told(alice.post_form(form(PURPOSE, file_part(LINES, filename))))
    assert kept["filename"] == shown
    answer = alice.ask("GET", f"/v1/files/{kept['id']}/content")
    disposition = answer.header("content-disposition")
    assert disposition is not None
    assert disposition.isascii()


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (form(file_part(LINES)), (400, "missing_required_parameter", "purpose")),
        (form(PURPOSE), (400, "missing_required_parameter", "file")),
        (form(field("purpose", "fine-tune"), file_part(LINES)), (400, "invalid_value", "purpose")),
        (form(file_part(LINES), field("purpose", "user_data")), (400, "invalid_value", "purpose")),
        (form(PURPOSE, PURPOSE, file_part(LINES)), (400, "invalid_value", "purpose")),
        (form(PURPOSE, file_part(LINES), file_part(LINES)), (400, "invalid_value", "file")),
        (form(PURPOSE, file_part(b"")), (400, "invalid_value", "file")),
        (form(PURPOSE, field("user", "me"), file_part(LINES)), (400, "unknown_parameter", "user")),
        (form(PURPOSE, field("x", "y" * 5000), file_part(LINES)), (400, "invalid_value", "x")),
        (form(*(field(f"f{n}", "") for n in range(20)), file_part(LINES)), (400, "invalid_value", "f16")),
        (
            form(PURPOSE, field("expires_after[anchor]", "created_at"), file_part(LINES)),
            (400, "missing_required_parameter", "expires_after.seconds"),
        ),
        (
            form(PURPOSE, file_part(LINES, more="Content-Transfer-Encoding: base64\r\n")),
            (400, "invalid_body", None),
        ),
        (
            form(PURPOSE, file_part(LINES, more="Content-Type: multipart/mixed; boundary=q\r\n")),
            (400, "invalid_body", None),
        ),
        (form(PURPOSE, b"X: y\r\n\r\nnameless", file_part(LINES)), (400, "invalid_body", None)),
        (upload_form(LINES)[:-30], (400, "invalid_body", None)),
        (upload_form(LINES).replace(b"\r\n------weir", b"\r\n------wEir"), (400, "invalid_body", None)),
        (b"", (400, "invalid_body", None)),
        (b"no form at all", (400, "invalid_body", None)),
    ],
)
def test_says_what_is_wrong_with_a_form(
    alice: ApiCaller, body: bytes, expected: tuple[int, str, str | None]
) -> None:
    assert refusal(alice.post_form(body)) == expected
    assert alice.listed("/v1/files") == []


@pytest.mark.parametrize(
    "content_type",
    ["application/json", "multipart/form-data", "multipart/form-data; boundary=" + "x" * 80, "🚀", ""],
)
def test_takes_nothing_but_a_form(alice: ApiCaller, content_type: str) -> None:
    headers = [(b"Content-Type", content_type.encode())]
    assert refusal(alice.ask("POST", "/v1/files", upload_form(LINES), headers))[:2] == (400, "invalid_body")


def test_says_which_files_it_keeps(alice: ApiCaller) -> None:
    answer = alice.post_form(form(field("purpose", "assistants"), file_part(LINES)))
    assert "'batch'" in told(answer)["error"]["message"]


def test_a_compressed_upload_is_not_taken_for_another(alice: ApiCaller) -> None:
    answer = alice.post_form(gzip.compress(upload_form(LINES)), [("Content-Encoding", "gzip")])
    assert refusal(answer) == (415, "unsupported_content_encoding", None)


@pytest.mark.parametrize("size", [1, 7, 1000])
def test_takes_an_upload_in_pieces_of_any_size(proxy: RunningWeir, alice: ApiCaller, size: int) -> None:
    content = LINES + b"--" + b"\r\n" * 20 + b"\r\n------weir" + LINES
    with proxy.client() as client:
        client.send(_head(alice, "Transfer-Encoding: chunked"))
        for piece in _chunked(upload_form(content), size):
            client.send(piece)
        kept = told(client.read_answer("POST"))
    assert kept["bytes"] == len(content)
    assert alice.ask("GET", f"/v1/files/{kept['id']}/content").body == content


def test_content_of_several_chunks_comes_back_as_it_was(alice: ApiCaller) -> None:
    content = b"".join(b"%09d\r\n" % number for number in range(300_000))
    kept = told(alice.post_form(upload_form(content)))
    answer = alice.ask("GET", f"/v1/files/{kept['id']}/content")
    assert (answer.is_whole, answer.body == content) == (True, True)


def test_waits_for_a_slow_upload_without_a_word(proxy: RunningWeir, alice: ApiCaller) -> None:
    body = upload_form(LINES)
    with proxy.client() as client:
        client.send(_head(alice, f"Content-Length: {len(body)}", "Expect: 100-continue"))
        assert client.receive() == b"HTTP/1.1 100 Continue\r\n\r\n"
        client.send(body[:-1])
        assert not client.is_closed_within(0.2)
        client.socket.settimeout(10)
        client.send(body[-1:])
        assert client.read_answer("POST").status == 200


def test_an_upload_that_is_cut_off_leaves_nothing_to_see(proxy: RunningWeir, alice: ApiCaller) -> None:
    body = upload_form(LINES * 20_000)
    with proxy.client() as client:
        client.send(_head(alice, f"Content-Length: {len(body)}"))
        client.send(body[: 2 * MIB])
        client.reset()
    assert alice.listed("/v1/files") == []
    deadline = time.monotonic() + 5.0
    while not any(record["error"] == "client_closed" for record in api_records(proxy, 1)):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def _refused_early(client: RawClient, piece: bytes) -> RawAnswer:
    """Send on and on until there is an answer."""
    client.socket.settimeout(0.01)
    received = b""
    deadline = time.monotonic() + 5.0
    while b"\r\n\r\n" not in received:
        assert time.monotonic() < deadline
        try:
            client.socket.send(piece)
            received += client.socket.recv(65536)
        except TimeoutError:
            pass
    client.socket.settimeout(5.0)
    client.buffer = received
    return client.read_answer("POST")


def test_refuses_what_is_too_large_at_its_announcement(proxy: RunningWeir, alice: ApiCaller) -> None:
    with proxy.client() as client:
        client.send(_head(alice, f"Content-Length: {201 * MIB}", "Expect: 100-continue"))
        answer = client.read_answer("POST")
    assert refusal(answer) == (413, "body_too_large", None)
    assert answer.header("connection") == "close"
    with proxy.client() as client:
        client.send(_head(alice, f"Content-Length: {201 * MIB}"))
        assert refusal(_refused_early(client, b"x" * 65536))[0] == 413


def test_refuses_a_wrong_purpose_without_waiting_for_the_file(proxy: RunningWeir, alice: ApiCaller) -> None:
    beginning = form(field("purpose", "fine-tune"), file_part(b"x" * 100_000))[:5000]
    with proxy.client() as client:
        client.send(_head(alice, f"Content-Length: {100 * MIB}") + beginning)
        assert refusal(_refused_early(client, b"x" * 65536)) == (400, "invalid_value", "purpose")


@pytest.mark.parametrize("ending", ["completed", "cut off"])
def test_refuses_more_uploads_at_once_than_are_allowed(tmp_path: Path, ending: str) -> None:
    content = b"x" * MIB
    body = upload_form(content)
    with served_weir(tmp_path, uploads_at_once=1) as proxy:
        alice, bob = ApiCaller(proxy, "alice"), ApiCaller(proxy, "bob")
        with proxy.client() as client:
            client.send(_head(alice, f"Content-Length: {len(body)}") + body[: MIB // 2])
            _eventually(lambda: bob.post_form(form(PURPOSE)).status, 429)
            answer = bob.post_form(upload_form(LINES))
            assert refusal(answer) == (429, "too_many_uploads", None)
            assert answer.header("retry-after") == "5"
            assert bob.ask("GET", "/v1/files").status == 200
            if ending == "completed":
                client.send(body[MIB // 2 :])
                assert told(client.read_answer("POST"))["bytes"] == len(content)
        _eventually(lambda: bob.post_form(upload_form(LINES)).status, 200)
        assert [len(each.listed("/v1/files")) for each in (alice, bob)] == [int(ending == "completed"), 1]


def test_an_upload_that_was_refused_makes_room_for_the_next(tmp_path: Path) -> None:
    with served_weir(tmp_path, uploads_at_once=1) as proxy:
        alice = ApiCaller(proxy)
        assert alice.post_form(form(PURPOSE)).status == 400
        assert alice.post_form(upload_form(LINES), [("Content-Encoding", "gzip")]).status == 415
        assert alice.post_form(upload_form(LINES)).status == 200


def _eventually(look: Callable[[], int], expected: int) -> None:
    deadline = time.monotonic() + 5.0
    while (found := look()) != expected:
        assert time.monotonic() < deadline, found
        time.sleep(0.01)


def test_neither_an_upload_nor_a_slow_download_is_held_in_memory(tmp_path: Path) -> None:
    policies = f"version: 1\nupstreams: {{local: {{base_url: {NOWHERE}, provider: vllm, api_key: k}}}}\n"
    content = b"x" * (48 * MIB)
    with weir_process(tmp_path, None, "--store", f"sqlite:{tmp_path}/jobs.db", policies=policies) as process:
        small = process.client().request(
            "POST", "/v1/files", upload_form(LINES), [("Content-Type", CONTENT_TYPE)]
        )
        assert small.status == 200
        before = process.peak_memory_bytes()
        with process.client(30.0) as client:
            kept = told(
                client.request("POST", "/v1/files", upload_form(content), [("Content-Type", CONTENT_TYPE)])
            )
        with process.client(30.0) as client:
            client.send_request("GET", f"/v1/files/{kept['id']}/content")
            head = client.read_head()
            time.sleep(0.3)
            assert head.header("content-length") == str(len(content))
            assert process.peak_memory_bytes() - before < 24 * MIB
            taken = len(client.buffer)
            client.buffer = b""
            while taken < len(content):
                taken += len(client.receive())
    assert taken == len(content)


def test_a_server_of_valkey_keeps_files_likewise_and_its_death_is_a_503(tmp_path: Path) -> None:
    content = b"".join(b"%09d\n" % number for number in range(250_000))
    with redis_running("valkey") as server, served_weir(tmp_path, store=server.url) as proxy:
        alice = ApiCaller(proxy)
        kept = told(alice.post_form(upload_form(content)))
        assert kept["bytes"] == len(content)
        assert alice.ask("GET", f"/v1/files/{kept['id']}/content").body == content
        server.kill()
        answer = alice.ask("GET", f"/v1/files/{kept['id']}")
        assert refusal(answer)[:2] == (503, "batch_store_unavailable")
        assert refusal(alice.post_form(upload_form(LINES)))[0] == 503
