"""How a failure goes out: as an answer, or as an event in the middle of a stream.

It owns rendering. When something fails and with what is decided elsewhere.
"""

from __future__ import annotations

from collections.abc import Sequence

from aiohttp import web
from multidict import CIMultiDict

from proxy.sim.errors import ApiError, Family, error_body, failure
from proxy.sim.scenario import Faults
from proxy.sim.work import Identity, Shape, data_event, named_event, to_json


def asked_failure(faults: Faults, status: int) -> ApiError:
    """Return the error that `faults` ask for, with `status`."""
    error = failure(status, faults.error_code, faults.retry_after)
    error.is_html = bool(faults.error_html)
    return error


def error_response(
    family: Family, error: ApiError, headers: Sequence[tuple[str, str]], identity: Identity
) -> web.Response:
    """Return an error as an answer in the API's shape, or as a gateway's page."""
    if error.is_html:
        page = f"<html><body><h1>{error.status}</h1></body></html>\n"
        return web.Response(
            status=error.status, headers=CIMultiDict(headers), text=page, content_type="text/html"
        )
    return web.Response(
        status=error.status,
        headers=CIMultiDict(headers),
        body=to_json(error_body(family, error, identity.make("req_", length=32))),
        content_type="application/json",
    )


def error_event(shape: Shape, identity: Identity, sent_events: int) -> bytes:
    """Return the event with which an API reports a failure after so many events."""
    error = failure(500)
    value = error_body(shape.family, error, identity.make("req_", length=32))
    if shape.family is Family.ANTHROPIC:
        return named_event("error", value)
    if shape.path == "/v1/responses":
        fields = {"type": "error", "code": "server_error", "message": error.message, "param": None}
        return named_event("error", {**fields, "sequence_number": sent_events})
    return data_event(value)
