"""/v1/responses beyond the answer at once: accept in the background, retrieve, cancel, delete.

It owns what each call may do in which state. The work itself is background_work's.
"""

from __future__ import annotations

from dataclasses import asdict

from proxy.sim import body as fields
from proxy.sim import responses
from proxy.sim.deferred.response_book import StoredResponse
from proxy.sim.errors import ApiError, Family, invalid
from proxy.sim.responses_rules import SOONEST, WINDOW_HOURS, check_responses
from proxy.sim.work import Bill, Call, PlainAnswer, Shape, Takes, Work

_PATH = "/v1/responses"
_HOUR_SECONDS = 3600.0


def _read_create(call: Call) -> Work:
    check_responses(call.body)
    if fields.flag(call.body, "background"):
        return _accept(call)
    return responses.SHAPE.read(call)


def _accept(call: Call) -> Work:
    """Take on a response for later; all that can be refused of it is refused now."""
    call.books.responses.check_room()
    work = responses.SHAPE.read(call)
    assert isinstance(work.answer, responses.ResponsesAnswer)
    response = _queued(call, work.tier, {**work.answer.opening(Bill(0, tier=work.tier)), "status": "queued"})
    return Work(
        answer=PlainAnswer(dict(response.value)),
        model=work.model,
        input_tokens=work.input_tokens,
        tier=work.tier,
        requested_tokens=work.requested_tokens,
        perform=lambda: call.books.responses.keep(response),
        runs_now=False,
    )


def _queued(call: Call, tier: str, value: dict[str, object]) -> StoredResponse:
    rules = call.scenario.background
    options = fields.mapping(call.body, "background_options") or {}
    window = str(options.get("completion_window") or SOONEST)
    seconds = WINDOW_HOURS[window] * _HOUR_SECONDS * rules.time_factor
    if window == SOONEST:
        seconds = rules.soonest_seconds
    if call.faults.background_seconds is not None:
        seconds = call.faults.background_seconds
    now = call.books.clock.wall()
    is_stored = fields.flag(call.body, "store", True)
    return StoredResponse(
        id=str(value["id"]),
        caller=call.caller,
        value=value,
        body=dict(call.body),
        body_hash=call.body_hash,
        identity_key=call.identity.key,
        created_at=now,
        tier=tier if window == SOONEST else f"background_{window}",
        starts_at=now + seconds,
        faults=asdict(call.faults),
        expires_at=None if is_stored else now + seconds + rules.unstored_seconds,
    )


def _id_in(call: Call) -> str:
    return call.path.removeprefix(f"{_PATH}/").removesuffix("/cancel")


def _read_retrieve(call: Call) -> Work:
    response = call.books.responses.find(call.caller, _id_in(call))
    if call.query.get("stream", "").lower() in ("1", "true"):
        raise invalid("stream", "The simulator does not stream stored responses.")
    return Work(PlainAnswer(dict(response.value)), "", 0)


def _read_cancel(call: Call) -> Work:
    """End work in the background. Cancelling what has ended changes nothing and shows it as it is."""
    response = call.books.responses.find(call.caller, _id_in(call))
    if not response.value.get("background"):
        raise ApiError(400, "Cannot cancel a synchronous response.")
    if not response.is_final:
        response.value["status"] = "cancelled"
        call.books.responses.keep(response)
    return Work(PlainAnswer(dict(response.value)), "", 0)


def _read_delete(call: Call) -> Work:
    response_id = _id_in(call)
    call.books.responses.remove(call.caller, response_id)
    return Work(PlainAnswer({"id": response_id, "object": "response", "deleted": True}), "", 0)


_ONE = _PATH + "/{id}"
SHAPES = (
    Shape(_PATH, Family.OPENAI, _read_create),
    Shape(_ONE, Family.OPENAI, _read_retrieve, "GET", False, False, Takes.NOTHING),
    Shape(_ONE, Family.OPENAI, _read_delete, "DELETE", False, False, Takes.NOTHING),
    Shape(_ONE + "/cancel", Family.OPENAI, _read_cancel, "POST", False, False, Takes.NOTHING),
)
