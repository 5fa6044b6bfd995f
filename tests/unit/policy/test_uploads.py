"""Which requests are uploads that pass unread."""

from __future__ import annotations

import pytest

from proxy.policy.model import Match, OnOversize, Route
from proxy.policy.uploads import upload_routes

FORM = "multipart/form-data; boundary=b"
ALL = Route("all", Match(path=("*",)))
BY_MODEL = Route("models", Match(model=("gpt*",)))
LIMITED = Route("limited", Match(path=("*",)), on_oversize=OnOversize.REJECT)


def routes(path: str, content_type: str | None = FORM, *candidates: Route) -> tuple[Route, ...] | None:
    fields = {"content-type": content_type}
    return upload_routes(candidates or (ALL,), path, fields.get)


@pytest.mark.parametrize(
    "path",
    ["/v1/files", "/V1/Files", "/openai/v1/files", "/openai/files", "/files", "/v1/uploads/u_1/parts"],
)
def test_files_and_their_parts_pass(path: str) -> None:
    assert routes(path) == (ALL,)
    assert routes(path, "Multipart/Form-Data;boundary=x") == (ALL,)


@pytest.mark.parametrize(
    "path",
    [
        "/v1/files/f_1",
        "/v1/uploads/u_1/complete",
        "/v1/uploads/parts",
        "/v1/my-files",
        "/v1/threads/files",
        "/v1/images/edits",
        "/v1/chat/completions",
    ],
)
def test_other_paths_are_looked_at(path: str) -> None:
    assert routes(path) is None


@pytest.mark.parametrize("content_type", [None, "", "application/json", "text/multipart/form-data"])
def test_what_is_no_form_is_looked_at(content_type: str | None) -> None:
    assert routes("/v1/files", content_type) is None


def test_a_form_takes_no_route_that_asks_for_json() -> None:
    assert routes("/v1/files", FORM, BY_MODEL, ALL) == (ALL,)
    assert routes("/v1/files", FORM, BY_MODEL) == ()


def test_a_route_that_limits_uploads_gets_to_read_them() -> None:
    assert routes("/v1/files", FORM, BY_MODEL, LIMITED) is None


def test_one_that_asks_what_would_happen_is_looked_at() -> None:
    fields = {"content-type": FORM, "x-weir-explain": "dry-run"}
    assert upload_routes((ALL,), "/v1/files", fields.get) is None
