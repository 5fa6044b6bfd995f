"""What callers may ask, and which field is at fault when they may not."""

from __future__ import annotations

import json
from typing import Any

import pytest

from proxy.batch_server.model import FilePurpose
from proxy.batch_server.requests import (
    FILE_SECONDS,
    BatchListing,
    BatchWish,
    FileListing,
    UploadWish,
    read_batch_listing,
    read_batch_wish,
    read_file_listing,
    read_upload_wish,
)
from proxy.core.errors import ProxyError

GOOD = {"input_file_id": "file-1", "endpoint": "/v1/chat/completions", "completion_window": "24h"}


def wish(**changes: Any) -> BatchWish:
    return read_batch_wish(json.dumps({k: v for k, v in (GOOD | changes).items() if v is not ...}).encode())


def refused(**changes: Any) -> tuple[str, str | None]:
    with pytest.raises(ProxyError) as raised:
        wish(**changes)
    assert raised.value.kind.status == 400
    assert raised.value.message
    return raised.value.kind.code, raised.value.param


def test_a_plain_wish_is_read() -> None:
    assert wish() == BatchWish("file-1", "/v1/chat/completions", "24h", 86_400.0, None, float(FILE_SECONDS))


def test_all_fields_are_read() -> None:
    told = wish(metadata={"a": "b"}, output_expires_after={"anchor": "created_at", "seconds": 3600})
    assert (told.metadata, told.output_seconds) == ((("a", "b"),), 3600.0)
    assert wish(metadata=None, output_expires_after=None).metadata is None
    assert wish(metadata={}).metadata == ()


@pytest.mark.parametrize(
    ("window", "seconds"), [("1s", 1), ("90m", 5400), ("168h", 604_800), ("7d", 604_800)]
)
def test_windows_from_a_second_to_a_week(window: str, seconds: float) -> None:
    assert (wish(completion_window=window).window_seconds, wish(completion_window=window).window) == (
        seconds,
        window,
    )


@pytest.mark.parametrize("window", ["0s", "999ms", "169h", "8d", "24", "1h30m", "tomorrow", 24])
def test_other_windows_are_refused(window: object) -> None:
    assert refused(completion_window=window) == ("invalid_value", "completion_window")


@pytest.mark.parametrize("name", list(GOOD))
@pytest.mark.parametrize("value", [..., None])
def test_missing_fields_are_named(name: str, value: object) -> None:
    assert refused(**{name: value}) == ("missing_required_parameter", name)


@pytest.mark.parametrize(
    ("changes", "param"),
    [
        ({"endpoint": "/v1/images/generations"}, "endpoint"),
        ({"endpoint": ["x"]}, "endpoint"),
        ({"input_file_id": ""}, "input_file_id"),
        ({"input_file_id": "\ud800"}, "input_file_id"),
        ({"metadata": []}, "metadata"),
        ({"metadata": {str(number): "x" for number in range(17)}}, "metadata"),
        ({"metadata": {"k" * 65: "x"}}, "metadata." + "k" * 65),
        ({"metadata": {"k": "x" * 513}}, "metadata.k"),
        ({"metadata": {"k": 5}}, "metadata.k"),
        ({"metadata": {"k": "\ud800"}}, "metadata.k"),
        ({"output_expires_after": 3600}, "output_expires_after"),
        ({"output_expires_after": {"anchor": "now", "seconds": 3600}}, "output_expires_after.anchor"),
        ({"output_expires_after": {"anchor": "created_at", "seconds": 3599}}, "output_expires_after.seconds"),
        (
            {"output_expires_after": {"anchor": "created_at", "seconds": 2592001}},
            "output_expires_after.seconds",
        ),
        ({"output_expires_after": {"anchor": "created_at", "seconds": True}}, "output_expires_after.seconds"),
    ],
)
def test_wrong_values_are_named(changes: dict[str, Any], param: str) -> None:
    assert refused(**changes) == ("invalid_value", param)


def test_half_an_expiry_is_missing_the_other_half() -> None:
    assert refused(output_expires_after={"seconds": 3600}) == (
        "missing_required_parameter",
        "output_expires_after.anchor",
    )


def test_unknown_fields_are_refused() -> None:
    assert refused(priority=1) == ("unknown_parameter", "priority")
    strange = {"anchor": "created_at", "seconds": 3600, "minutes": 1}
    assert refused(output_expires_after=strange) == ("unknown_parameter", "output_expires_after.minutes")


@pytest.mark.parametrize("body", [b"", b"[]", b"{", b'{"a":' * 20 + b"1" + b"}" * 20])
def test_a_body_that_is_no_object_is_refused(body: bytes) -> None:
    with pytest.raises(ProxyError) as raised:
        read_batch_wish(body)
    assert raised.value.kind.code == "invalid_body"


def test_the_form_of_an_upload_is_read() -> None:
    assert read_upload_wish([("purpose", "batch")]) == UploadWish(FilePurpose.BATCH, float(FILE_SECONDS))
    form = [("purpose", "batch"), ("expires_after[anchor]", "created_at"), ("expires_after[seconds]", "3600")]
    assert read_upload_wish(form).kept_seconds == 3600.0


@pytest.mark.parametrize(
    ("form", "code", "param"),
    [
        ([], "missing_required_parameter", "purpose"),
        ([("purpose", "fine-tune")], "invalid_value", "purpose"),
        ([("purpose", "batch"), ("x", "y")], "unknown_parameter", "x"),
        (
            [("purpose", "batch"), ("expires_after[seconds]", "3600")],
            "missing_required_parameter",
            "expires_after.anchor",
        ),
        (
            [
                ("purpose", "batch"),
                ("expires_after[anchor]", "created_at"),
                ("expires_after[seconds]", "1e4"),
            ],
            "invalid_value",
            "expires_after.seconds",
        ),
    ],
)
def test_a_wrong_form_is_refused(form: list[tuple[str, str]], code: str, param: str) -> None:
    with pytest.raises(ProxyError) as raised:
        read_upload_wish(form)
    assert (raised.value.kind.code, raised.value.param) == (code, param)


def test_lists_are_asked_for() -> None:
    assert read_batch_listing("") == BatchListing(20, None)
    assert read_batch_listing("limit=100&after=batch_1&x=y") == BatchListing(100, "batch_1")
    assert read_file_listing("") == FileListing(10_000, None, None, True, False)
    told = read_file_listing("limit=5&order=asc&purpose=batch_output&after=file-1")
    assert told == FileListing(5, "file-1", FilePurpose.BATCH_OUTPUT, False, False)
    assert read_file_listing("purpose=fine-tune").is_empty


@pytest.mark.parametrize(
    "query", ["limit=0", "limit=101", "limit=-1", "limit=x", "limit=", "limit=1e1", "limit=٣"]
)
def test_wrong_limits_are_refused(query: str) -> None:
    with pytest.raises(ProxyError) as raised:
        read_batch_listing(query)
    assert (raised.value.kind.code, raised.value.param) == ("invalid_value", "limit")


@pytest.mark.parametrize(
    ("query", "param"), [("limit=10001", "limit"), ("order=up", "order"), ("purpose=nonsense", "purpose")]
)
def test_wrong_lists_of_files_are_refused(query: str, param: str) -> None:
    with pytest.raises(ProxyError) as raised:
        read_file_listing(query)
    assert raised.value.param == param
