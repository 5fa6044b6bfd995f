"""Files and batches look as the official SDK's types want them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from proxy.batch_server.model import (
    BatchStatus,
    FilePurpose,
    LineProblem,
    Progress,
    ServedBatch,
    StoredFile,
    TokenSums,
)
from proxy.batch_server.objects import batch_object, deleted_file, file_object, list_page, told

FILE = StoredFile("file-1", "o", FilePurpose.BATCH, "in.jsonl", 10.9, 20.5, 7, 1, is_complete=True)
BATCH = ServedBatch(
    "batch_1",
    "o",
    "local",
    "/v1/completions",
    "file-1",
    "24h",
    created=100.7,
    expires=200.2,
    output_file_id="file-2",
    error_file_id="file-3",
    output_seconds=1.0,
    purge_at=9e9,
)


def test_a_file_has_every_field() -> None:
    assert file_object(FILE) == {
        "id": "file-1",
        "object": "file",
        "bytes": 7,
        "created_at": 10,
        "expires_at": 20,
        "filename": "in.jsonl",
        "purpose": "batch",
        "status": "processed",
        "status_details": None,
    }
    assert deleted_file("file-1") == {"id": "file-1", "object": "file", "deleted": True}


def test_a_page_names_its_ends() -> None:
    page = list_page([{"id": "a"}, {"id": "b"}], has_more=True)
    assert (page["object"], page["first_id"], page["last_id"], page["has_more"]) == ("list", "a", "b", True)
    assert list_page([], has_more=False) == {
        "object": "list",
        "data": [],
        "first_id": None,
        "last_id": None,
        "has_more": False,
    }


def test_a_new_batch_has_every_field() -> None:
    assert batch_object(BATCH) == {
        "id": "batch_1",
        "object": "batch",
        "endpoint": "/v1/completions",
        "model": None,
        "errors": None,
        "input_file_id": "file-1",
        "completion_window": "24h",
        "status": "validating",
        "output_file_id": None,
        "error_file_id": None,
        "created_at": 100,
        "in_progress_at": None,
        "expires_at": 200,
        "finalizing_at": None,
        "completed_at": None,
        "failed_at": None,
        "expired_at": None,
        "cancelling_at": None,
        "cancelled_at": None,
        "request_counts": {"total": 0, "completed": 0, "failed": 0},
        "usage": {
            "input_tokens": 0,
            "input_tokens_details": {"cached_tokens": 0},
            "output_tokens": 0,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": 0,
        },
        "metadata": None,
    }


@pytest.mark.parametrize("status", [BatchStatus.VALIDATING, BatchStatus.IN_PROGRESS, BatchStatus.FINALIZING])
def test_a_live_batch_that_is_to_end_is_cancelling(status: BatchStatus) -> None:
    shown = batch_object(replace(BATCH, progress=Progress(status), cancelling_at=150.5))
    assert (shown["status"], shown["cancelling_at"]) == ("cancelling", 150)


@pytest.mark.parametrize("status", ["completed", "failed", "expired", "cancelled"])
def test_an_ended_batch_tells_when_and_how(status: str) -> None:
    progress = Progress(BatchStatus(status), ended_at=180.9, in_progress_at=110.1, finalizing_at=170.1)
    shown = batch_object(replace(BATCH, progress=progress, cancelling_at=150.0))
    assert shown["status"] == status
    ends = ("completed", "failed", "expired", "cancelled")
    assert [name for name in ends if shown[f"{name}_at"] is not None] == [status]
    assert (shown[f"{status}_at"], shown["in_progress_at"], shown["finalizing_at"]) == (180, 110, 170)


def test_result_files_show_at_the_end_and_with_content_only() -> None:
    running = Progress(BatchStatus.FINALIZING, output_bytes=5, error_bytes=5)
    assert batch_object(replace(BATCH, progress=running))["output_file_id"] is None
    ended = batch_object(
        replace(BATCH, progress=replace(running, status=BatchStatus.CANCELLED, error_bytes=0))
    )
    assert (ended["output_file_id"], ended["error_file_id"]) == ("file-2", None)


def test_counts_tokens_problems_and_metadata_are_told() -> None:
    progress = Progress(
        BatchStatus.FAILED,
        total=9,
        completed=5,
        failed=4,
        model="m",
        problems=(LineProblem("url_mismatch", "no", 3, "url"),),
        tokens=TokenSums(10, 2, 5, 1),
    )
    shown = batch_object(replace(BATCH, progress=progress, metadata=(("k", "v"),)))
    assert shown["request_counts"] == {"total": 9, "completed": 5, "failed": 4}
    assert shown["errors"] == {
        "object": "list",
        "data": [{"code": "url_mismatch", "message": "no", "line": 3, "param": "url"}],
    }
    assert (shown["usage"]["total_tokens"], shown["metadata"], shown["model"]) == (15, {"k": "v"}, "m")


def test_the_log_hears_what_came_of_a_batch() -> None:
    ran = Progress(BatchStatus.CANCELLED, total=5, completed=3, failed=2)
    assert told(ran) == "3 of 5 lines completed, 2 in the error file"


def test_the_log_hears_why_an_input_will_not_do_but_none_of_its_content() -> None:
    twice = LineProblem("duplicate_custom_id", "The custom_id 'alice' is that of an earlier line.", 2)
    empty = LineProblem("empty_file", "The input file is empty.")
    assert told(Progress(BatchStatus.FAILED, problems=(twice,))) == "duplicate_custom_id (line 2)"
    assert told(Progress(BatchStatus.FAILED, problems=(twice, twice))) == (
        "duplicate_custom_id (line 2) and 1 more"
    )
    assert told(Progress(BatchStatus.FAILED, problems=(empty,))) == "empty_file (The input file is empty)"
