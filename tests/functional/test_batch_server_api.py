"""Files and batches of Weir's own batch API as callers meet them, on real sockets."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.batch_server import (
    LINES,
    NOWHERE,
    SECRET,
    ApiCaller,
    api_records,
    line,
    record_of,
    refusal,
    served_weir,
    told,
    wish,
)
from tests.support.weir import RunningWeir

KEYLESS = f"version: 1\nupstreams: {{local: {{base_url: {NOWHERE}, provider: llamacpp}}}}\n"


@pytest.fixture(scope="module")
def proxy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningWeir]:
    with served_weir(tmp_path_factory.mktemp("served")) as running:
        yield running


@pytest.fixture
def alice(proxy: RunningWeir, request: pytest.FixtureRequest) -> ApiCaller:
    """A caller whom no other test knows."""
    return ApiCaller(proxy, f"alice of {request.node.name}".encode().hex())


def test_keeps_a_file_and_tells_it_in_openais_shape(alice: ApiCaller) -> None:
    file_id = alice.upload()
    kept = told(alice.ask("GET", f"/v1/files/{file_id}"))
    assert (kept["object"], kept["purpose"], kept["filename"]) == ("file", "batch", "in.jsonl")
    assert (kept["bytes"], kept["status"]) == (len(LINES), "processed")
    assert kept["expires_at"] - kept["created_at"] == 30 * 24 * 3600
    content = alice.ask("GET", f"/v1/files/{file_id}/content")
    assert content.body == LINES
    assert content.header("content-type") == "application/octet-stream"
    assert content.header("content-disposition") == "attachment; filename*=UTF-8''in.jsonl"
    head = alice.ask("HEAD", f"/v1/files/{file_id}/content")
    assert (head.status, head.header("content-length"), head.body) == (200, str(len(LINES)), b"")
    assert told(alice.ask("DELETE", f"/v1/files/{file_id}")) == {
        "id": file_id,
        "object": "file",
        "deleted": True,
    }
    assert refusal(alice.ask("GET", f"/v1/files/{file_id}")) == (404, "file_not_found", "file_id")


def test_lists_files_page_by_page_in_both_orders(alice: ApiCaller) -> None:
    ids = [alice.upload(line(str(number))) for number in range(3)]
    assert sorted(alice.listed("/v1/files")) == sorted(ids)
    oldest = alice.listed("/v1/files?order=asc")
    assert alice.listed("/v1/files?order=desc") == oldest[::-1]
    first = told(alice.ask("GET", "/v1/files?order=asc&limit=2"))
    assert (first["has_more"], first["first_id"], first["last_id"]) == (True, oldest[0], oldest[1])
    rest = told(alice.ask("GET", f"/v1/files?order=asc&limit=2&after={first['last_id']}"))
    assert (rest["has_more"], [each["id"] for each in rest["data"]]) == (False, oldest[2:])
    assert alice.listed("/v1/files?purpose=batch_output") == []
    assert alice.listed("/v1/files?purpose=fine-tune") == []


@pytest.mark.parametrize(
    ("target", "param"),
    [
        ("/v1/files?limit=0", "limit"),
        ("/v1/files?limit=10001", "limit"),
        ("/v1/files?order=up", "order"),
        ("/v1/files?after=file-none", "after"),
        ("/v1/batches?limit=101", "limit"),
        ("/v1/batches?after=batch_none", "after"),
    ],
)
def test_refuses_a_page_that_cannot_be(alice: ApiCaller, target: str, param: str) -> None:
    assert refusal(alice.ask("GET", target)) == (400, "invalid_value", param)


def test_begins_a_batch_and_tells_it_in_openais_shape(alice: ApiCaller) -> None:
    file_id = alice.upload()
    batch = alice.create(file_id, metadata={"job": "nightly"}, completion_window="2h")
    assert (batch["object"], batch["endpoint"]) == ("batch", "/v1/chat/completions")
    assert (batch["input_file_id"], batch["metadata"]) == (file_id, {"job": "nightly"})
    assert batch["expires_at"] - batch["created_at"] == 2 * 3600
    assert batch["status"] in ("validating", "in_progress")
    assert (batch["output_file_id"], batch["error_file_id"]) == (None, None)
    again = told(alice.ask("GET", f"/v1/batches/{batch['id']}"))
    assert again["id"] == batch["id"]
    assert alice.listed("/v1/batches") == [batch["id"]]


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (b"[]", (400, "invalid_body", None)),
        (b"{", (400, "invalid_body", None)),
        (wish("file-" + "0" * 32), (404, "file_not_found", "input_file_id")),
        (wish("../../etc/passwd"), (404, "file_not_found", "input_file_id")),
        (wish("x", endpoint="/v1/audio"), (400, "invalid_value", "endpoint")),
        (wish("x", completion_window="8d"), (400, "invalid_value", "completion_window")),
        (wish("x", metadata={"k": 1}), (400, "invalid_value", "metadata.k")),
        (wish("x", priority=1), (400, "unknown_parameter", "priority")),
    ],
)
def test_refuses_a_batch_that_cannot_be(
    alice: ApiCaller, body: bytes, expected: tuple[int, str, str | None]
) -> None:
    assert refusal(alice.ask("POST", "/v1/batches", body)) == expected


def test_refuses_a_question_of_unreasonable_size(alice: ApiCaller) -> None:
    answer = alice.ask("POST", "/v1/batches", b" " * 70_000)
    assert refusal(answer) == (413, "body_too_large", None)


def test_cancels_a_batch_once_and_again(alice: ApiCaller) -> None:
    batch_id = alice.create(alice.upload())["id"]
    for _ in range(3):
        answer = alice.ask("POST", f"/v1/batches/{batch_id}/cancel")
        assert answer.status == 200
        assert told(answer)["status"] in ("cancelling", "cancelled")
        assert told(answer)["cancelling_at"]


def test_the_same_idempotency_key_and_body_is_the_same_batch(proxy: RunningWeir, alice: ApiCaller) -> None:
    bob = ApiCaller(proxy, "bob")
    key = [("Idempotency-Key", "once")]
    file_id = alice.upload()
    first = alice.create(file_id, key)["id"]
    assert alice.create(file_id, key)["id"] == first
    assert alice.create(file_id, [("Idempotency-Key", "twice")])["id"] != first
    assert alice.create(file_id, key, metadata={"a": "b"})["id"] != first
    assert bob.create(bob.upload(), key)["id"] != first


def test_b87_nobody_else_sees_files_and_batches(proxy: RunningWeir, alice: ApiCaller) -> None:
    # B87 BerriAI/litellm#34092
    bob, nobody = ApiCaller(proxy, "mallory"), ApiCaller(proxy, None)
    file_id = alice.upload()
    batch_id = alice.create(file_id)["id"]
    for stranger in (bob, nobody):
        for method, target in (
            ("GET", f"/v1/files/{file_id}"),
            ("GET", f"/v1/files/{file_id}/content"),
            ("HEAD", f"/v1/files/{file_id}/content"),
            ("DELETE", f"/v1/files/{file_id}"),
            ("GET", f"/v1/batches/{batch_id}"),
            ("POST", f"/v1/batches/{batch_id}/cancel"),
        ):
            assert stranger.ask(method, target).status == 404, (method, target)
        assert stranger.listed("/v1/files") == []
        assert stranger.listed("/v1/batches") == []
        assert refusal(stranger.ask("POST", "/v1/batches", wish(file_id)))[0] == 404
        assert stranger.ask("GET", f"/v1/files?after={file_id}").status == (400 if stranger is bob else 200)
    assert told(alice.ask("GET", f"/v1/batches/{batch_id}"))["cancelling_at"] is None
    assert alice.ask("GET", f"/v1/files/{file_id}/content").body == LINES


def test_b88_an_unknown_id_is_told_as_such(alice: ApiCaller) -> None:
    # B88 BerriAI/litellm#37148
    for kind, word in (("files", "file"), ("batches", "batch")):
        for target in ("none", f"{word}-{'0' * 32}", "%F0%9F%98%80", "x" * 3000, "..%252f"):
            answer = alice.ask("GET", f"/v1/{kind}/{target}")
            if answer.status != 400:
                assert refusal(answer)[:2] == (404, f"{word}_not_found")
    assert refusal(alice.ask("POST", "/v1/batches/batch_none/cancel"))[:2] == (404, "batch_not_found")
    assert refusal(alice.ask("DELETE", "/v1/files/file-none"))[:2] == (404, "file_not_found")


def test_without_credentials_the_id_is_the_key(proxy: RunningWeir) -> None:
    nobody = ApiCaller(proxy, None)
    file_id = nobody.upload()
    batch_id = nobody.create(file_id)["id"]
    assert nobody.ask("GET", f"/v1/files/{file_id}/content").body == LINES
    assert told(nobody.ask("GET", f"/v1/batches/{batch_id}"))["id"] == batch_id
    assert nobody.listed("/v1/files") == nobody.listed("/v1/batches") == []


@pytest.mark.parametrize(
    ("method", "target", "allowed"),
    [
        ("PUT", "/v1/files", "GET, HEAD, POST"),
        ("DELETE", "/v1/batches", "GET, HEAD, POST"),
        ("POST", "/v1/files/file-x", "GET, HEAD, DELETE"),
        ("DELETE", "/v1/files/file-x/content", "GET, HEAD"),
        ("DELETE", "/v1/batches/batch_x", "GET, HEAD"),
        ("GET", "/v1/batches/batch_x/cancel", "POST"),
    ],
)
def test_says_what_can_be_asked_for(proxy: RunningWeir, method: str, target: str, allowed: str) -> None:
    answer = ApiCaller(proxy).ask(method, target, b"" if method != "GET" else None)
    assert refusal(answer) == (405, "method_not_allowed", None)
    assert told(answer)["error"]["message"] == f"{method} is not answered here, only {allowed}."
    assert answer.header("allow") == allowed
    record = record_of(proxy, answer)
    assert (record["status"], record["error"]) == (405, "method_not_allowed")


@pytest.mark.parametrize("target", ["/v1/files/a/b", "/v1/files/a/content/c", "/v1/batches/a/stop"])
def test_has_no_other_paths(alice: ApiCaller, target: str) -> None:
    answer = alice.ask("GET", target)
    assert answer.status == 404
    assert told(answer)["error"]["message"] == f"There is no {target} here."


def test_borrowed_credentials_need_a_key_to_seal_them_with(tmp_path: Path) -> None:
    with served_weir(tmp_path, KEYLESS) as proxy:
        alice = ApiCaller(proxy)
        answer = alice.ask("POST", "/v1/batches", wish(alice.upload()))
        assert refusal(answer) == (400, "batch_needs_secret_key", None)
        message = told(answer)["error"]["message"]
        assert "WEIR_SECRET_KEY" in message
        assert "api_key" in message
        nobody = ApiCaller(proxy, None)
        assert nobody.create(nobody.upload())["status"]


def test_borrowed_credentials_are_kept_sealed(tmp_path: Path) -> None:
    with served_weir(tmp_path, KEYLESS, secret_key=SECRET) as proxy:
        alice = ApiCaller(proxy, "sk-very-secret-0123456789")
        alice.create(alice.upload(), [("X-Team", "blue"), ("X-Session-Token", "sk-other-secret")])
        files = [path.read_bytes() for path in tmp_path.glob("jobs.db*")]
        assert any(b"X-Team" in content for content in files)
        for secret in (b"sk-very-secret", b"sk-other-secret"):
            assert not any(secret in content for content in files)


def test_a_request_is_recorded_once_and_says_who_answered(tmp_path: Path) -> None:
    with served_weir(tmp_path) as proxy:
        alice = ApiCaller(proxy)
        answer = alice.ask("GET", "/v1/files")
        assert answer.header("x-weir-lane") == 'batch; reason="batch API of Weir"'
        (record,) = proxy.log(1)
        assert (record["lane_reason"], record["upstream"], record["status"]) == (
            "batch API of Weir",
            None,
            200,
        )
        assert record["request_id"] == answer.header("x-weir-request-id")
        assert alice.ask("GET", "/v1/files/x").status == 404
        assert proxy.log(2)[1]["error"] == "file_not_found"


def test_a_connection_serves_one_request_after_another(proxy: RunningWeir, alice: ApiCaller) -> None:
    file_id = alice.upload()
    with proxy.client() as client:
        for target in (f"/v1/files/{file_id}", f"/v1/files/{file_id}/content", "/v1/files/x", "/v1/batches"):
            answer = client.request("GET", target, None, alice.headers)
            assert answer.header("connection") != "close", target


def test_a_store_that_is_gone_is_a_503(tmp_path: Path) -> None:
    with served_weir(tmp_path) as proxy:
        alice = ApiCaller(proxy)
        file_id = alice.upload()
        for path in tmp_path.glob("jobs.db.batches*"):
            path.unlink()
        answer = alice.ask("GET", f"/v1/files/{file_id}")
        assert refusal(answer)[:2] == (503, "batch_store_unavailable")
        assert answer.header("retry-after")


def test_files_and_batches_outlive_a_restart(tmp_path: Path) -> None:
    with served_weir(tmp_path) as proxy:
        alice = ApiCaller(proxy)
        file_id = alice.upload()
        batch_id = alice.create(file_id)["id"]
    with served_weir(tmp_path) as proxy:
        alice = ApiCaller(proxy)
        assert alice.ask("GET", f"/v1/files/{file_id}/content").body == LINES
        assert alice.listed("/v1/batches") == [batch_id]


def test_a_caller_chooses_a_webhook_where_its_route_allows_that(tmp_path: Path) -> None:
    policies = f"""
version: 1
upstreams:
  local: {{base_url: {NOWHERE}, provider: vllm, api_key: k}}
webhooks:
  mine: {{url: "http://127.0.0.1:9/hook", secret: "whsec_MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE="}}
routes:
  - {{name: all, match: {{headers: {{x-team: blue}}}}, allow_caller: [x-weir-webhook]}}
"""
    with served_weir(tmp_path, policies) as proxy:
        alice = ApiCaller(proxy)
        file_id = alice.upload()
        unknown, known = [("x-weir-webhook", "nobody")], [("x-weir-webhook", "mine")]
        blue = [("x-team", "blue")]
        assert alice.create(file_id, unknown)["id"]
        answer = alice.ask("POST", "/v1/batches", wish(file_id), [*unknown, *blue])
        assert refusal(answer) == (400, "unknown_webhook", None)
        assert alice.create(file_id, [*known, *blue])["id"]
        assert [record["route"] for record in api_records(proxy, 4)] == [None, None, "all", "all"]


def test_a_caller_that_leaves_is_recorded(tmp_path: Path) -> None:
    with served_weir(tmp_path) as proxy:
        with proxy.client() as client:
            client.send(b"POST /v1/batches HTTP/1.1\r\nHost: w\r\nContent-Length: 100\r\n\r\n{")
            client.socket.shutdown(socket.SHUT_RDWR)
        (record,) = proxy.log(1)
        assert record["error"] == "client_closed"


def test_an_empty_list_has_every_field(alice: ApiCaller) -> None:
    answer = alice.ask("GET", "/v1/batches")
    assert json.loads(answer.body) == {
        "object": "list",
        "data": [],
        "first_id": None,
        "last_id": None,
        "has_more": False,
    }


def test_a_file_sealed_with_another_key_says_so(tmp_path: Path) -> None:
    with served_weir(tmp_path, secret_key=SECRET) as proxy:
        file_id = ApiCaller(proxy).upload()
    with served_weir(tmp_path, secret_key=f"another-{SECRET}") as proxy:
        answer = ApiCaller(proxy).ask("GET", f"/v1/files/{file_id}/content")
        assert refusal(answer)[:2] == (500, "stored_file_unreadable")
        assert SECRET not in answer.body.decode()
    with served_weir(tmp_path, secret_key=f"another-{SECRET},{SECRET}") as proxy:
        assert ApiCaller(proxy).ask("GET", f"/v1/files/{file_id}/content").body == LINES


def test_a_download_that_its_caller_leaves_ends(tmp_path: Path) -> None:
    with served_weir(tmp_path) as proxy:
        alice = ApiCaller(proxy)
        file_id = alice.upload(LINES * 100_000)
        with proxy.client(receive_buffer_bytes=4096) as client:
            client.send_request("GET", f"/v1/files/{file_id}/content", None, alice.headers)
            assert client.read_head().status == 200
            client.reset()
        record = api_records(proxy, 2)[-1]
        assert (record["status"], record["error"]) == (200, "client_closed")
        assert alice.ask("DELETE", f"/v1/files/{file_id}").status == 200


def test_a_file_that_is_deleted_while_it_is_read_is_not_told_as_whole(tmp_path: Path) -> None:
    with served_weir(tmp_path) as proxy:
        alice = ApiCaller(proxy)
        content = LINES * 100_000
        file_id = alice.upload(content)
        with proxy.client(receive_buffer_bytes=4096) as client:
            client.send_request("GET", f"/v1/files/{file_id}/content", None, alice.headers)
            client.buffer = client.receive()
            assert alice.ask("DELETE", f"/v1/files/{file_id}").status == 200
            answer = client.read_answer()
        assert not answer.is_whole
        assert content.startswith(answer.body)
        assert any(record["error"] == "file_not_found" for record in api_records(proxy, 3))
