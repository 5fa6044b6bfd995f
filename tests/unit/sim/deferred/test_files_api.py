from __future__ import annotations

from collections.abc import Callable

import pytest

from proxy.core.clock import ManualClock
from proxy.sim.deferred.rules import BatchRules, FileRules
from proxy.sim.scenario import Scenario
from tests.unit.sim.deferred.batching import create, jsonl, lines_about
from tests.unit.sim.running import INSTANT, Sim, as_caller

CONTENT = jsonl(lines_about(2))


def test_an_upload_is_a_file_object(sim: Sim) -> None:
    file = sim.upload(CONTENT).json()
    assert {key: file[key] for key in ("object", "bytes", "filename", "purpose", "status")} == {
        "object": "file",
        "bytes": len(CONTENT),
        "filename": "in.jsonl",
        "purpose": "batch",
        "status": "processed",
    }
    assert file["id"].startswith("file-")
    assert file["expires_at"] - file["created_at"] == 30 * 24 * 3600
    assert sim.get(f"/v1/files/{file['id']}").json() == file


def test_content_comes_back_byte_for_byte(sim: Sim) -> None:
    content = bytes(range(256)) * 1000 + b"\r\n--other\r\n"
    file = sim.upload(content, purpose="user_data").json()
    assert file["expires_at"] is None
    reply = sim.get(f"/v1/files/{file['id']}/content")
    assert (reply.body, reply.headers["content-type"]) == (content, "application/octet-stream")


def test_equal_uploads_are_different_files(sim: Sim) -> None:
    assert sim.upload(CONTENT).json()["id"] != sim.upload(CONTENT).json()["id"]


def test_a_deleted_file_is_gone(sim: Sim) -> None:
    file_id = sim.upload(CONTENT).json()["id"]
    deleted = sim.send("DELETE", f"/v1/files/{file_id}").json()
    assert deleted == {"id": file_id, "object": "file", "deleted": True}
    for reply in (sim.get(f"/v1/files/{file_id}"), sim.send("DELETE", f"/v1/files/{file_id}")):
        error = reply.json()["error"]
        assert (reply.status, error["type"], error["param"]) == (404, "invalid_request_error", "id")
        assert error["message"] == f"No such File object: {file_id}"


def test_a_caller_sees_its_own_files_only(sim: Sim) -> None:
    file_id = sim.upload(CONTENT, key="a").json()["id"]
    for path in (f"/v1/files/{file_id}", f"/v1/files/{file_id}/content"):
        assert [sim.get(path, key).status for key in ("a", "b")] == [200, 404]
    assert sim.send("DELETE", f"/v1/files/{file_id}", None, as_caller("b")).status == 404
    assert sim.get("/v1/files", "b").json()["data"] == []


def test_lists_newest_first_in_pages(sim: Sim) -> None:
    ids = [sim.upload(CONTENT).json()["id"] for _ in range(3)]
    sim.upload(CONTENT, purpose="user_data")
    first = sim.get("/v1/files?limit=2&purpose=batch").json()
    assert [file["id"] for file in first["data"]] == [ids[2], ids[1]]
    assert (first["has_more"], first["first_id"], first["last_id"]) == (True, ids[2], ids[1])
    second = sim.get(f"/v1/files?limit=2&purpose=batch&after={first['last_id']}").json()
    assert ([file["id"] for file in second["data"]], second["has_more"]) == ([ids[0]], False)
    oldest = sim.get("/v1/files?order=asc&limit=1").json()
    assert oldest["data"][0]["id"] == ids[0]


@pytest.mark.parametrize("query", ["limit=0", "limit=x", "limit=10001", "after=file-none", "order=newest"])
def test_refuses_a_page_that_it_cannot_read(sim: Sim, query: str) -> None:
    reply = sim.get(f"/v1/files?{query}")
    assert (reply.status, reply.json()["error"]["param"]) == (400, query.partition("=")[0])


def test_files_expire_as_asked(simulate: Callable[..., Sim]) -> None:
    clock = ManualClock()
    sim = simulate(Scenario(timing=INSTANT), clock)
    expiry = {"expires_after[anchor]": "created_at", "expires_after[seconds]": "3600"}
    file = sim.upload(CONTENT, form=expiry).json()
    assert file["expires_at"] - file["created_at"] == 3600
    clock.advance(3599)
    assert sim.get(f"/v1/files/{file['id']}").status == 200
    clock.advance(1)
    assert sim.get(f"/v1/files/{file['id']}").status == 404
    assert sim.get("/v1/files").json()["data"] == []


@pytest.mark.parametrize(
    ("form", "param"),
    [
        ({"purpose": "other"}, "purpose"),
        ({"expires_after[anchor]": "created_at", "expires_after[seconds]": "60"}, "expires_after.seconds"),
        ({"expires_after[anchor]": "now", "expires_after[seconds]": "3600"}, "expires_after.anchor"),
        ({"expires_after[seconds]": "3600"}, "expires_after.anchor"),
        ({"colour": "red"}, "colour"),
    ],
)
def test_refuses_a_form_that_is_wrong(sim: Sim, form: dict[str, str], param: str) -> None:
    reply = sim.upload(CONTENT, form=form)
    assert (reply.status, reply.json()["error"]["param"]) == (400, param)


def test_refuses_what_is_no_form(sim: Sim) -> None:
    assert sim.post("/v1/files", {"purpose": "batch"}).status == 400
    broken = {"content-type": "multipart/form-data"}
    assert sim.send("POST", "/v1/files", b"--x\r\n", broken).status == 400
    no_file = b'--x\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nbatch\r\n--x--\r\n'
    reply = sim.send("POST", "/v1/files", no_file, {"content-type": "multipart/form-data; boundary=x"})
    assert (reply.status, reply.json()["error"]["param"]) == (400, "file")


def test_too_large_a_file_is_refused(simulate: Callable[..., Sim]) -> None:
    rules = Scenario(timing=INSTANT, files=FileRules(max_bytes=2000), batches=BatchRules(max_bytes=1000))
    sim = simulate(rules)
    assert sim.upload(b"x" * 1000).status == 200
    assert sim.upload(b"x" * 1001).status == 413
    assert sim.upload(b"x" * 1001, purpose="user_data").status == 200
    refused = sim.upload(b"x" * 2001, purpose="user_data")
    assert (refused.status, refused.json()["error"]["code"]) == (413, "content_too_large")


def test_a_full_provider_refuses_and_forgets_nothing(simulate: Callable[..., Sim]) -> None:
    sim = simulate(Scenario(timing=INSTANT, files=FileRules(max_files=2, total_bytes=1000)))
    first = sim.upload(b"x" * 600).json()["id"]
    assert sim.upload(b"x" * 600).json()["error"]["code"] == "storage_limit_exceeded"
    assert sim.upload(b"x" * 100).status == 200
    assert sim.upload(b"x").status == 400
    body = {"input_file_id": first, "endpoint": "/v1/chat/completions", "completion_window": "24h"}
    assert sim.post("/v1/batches", body).json()["error"]["code"] == "storage_limit_exceeded"
    sim.send("DELETE", f"/v1/files/{first}")
    assert sim.upload(b"x" * 600).status == 200


def test_a_file_may_take_time_to_be_processed(simulate: Callable[..., Sim]) -> None:
    clock = ManualClock()
    sim = simulate(Scenario(timing=INSTANT, files=FileRules(processing_seconds=10)), clock)
    file = sim.upload(CONTENT).json()
    assert file["status"] == "uploaded"
    assert create(sim, CONTENT).json()["error"]["param"] == "input_file_id"
    clock.advance(10)
    assert sim.get(f"/v1/files/{file['id']}").json()["status"] == "processed"


def test_neither_files_nor_polls_count_towards_rate_limits_or_bills(sim: Sim) -> None:
    sim.upload(CONTENT)
    stats = sim.stats()
    assert (stats["executions_total"], stats["tokens"], stats["most_in_work"]) == (0, {}, 0)
    assert stats["requests"] == {"/v1/files": 1}
