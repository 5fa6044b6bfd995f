"""/v1/batches: create, list, retrieve, cancel.

It owns what makes a create request legal and what of the simulator's wishes it may carry. What is in the
input file is checked later, when the batch is validated, as OpenAI does.
"""

from __future__ import annotations

from dataclasses import fields as fields_of
from typing import cast

from proxy.sim import body as fields
from proxy.sim.deferred.batch import Batch, Status
from proxy.sim.deferred.files import StoredFile
from proxy.sim.deferred.files_api import expiry_seconds
from proxy.sim.deferred.lines import SHAPES as LINE_SHAPES
from proxy.sim.deferred.paging import list_object, page_of, read_limit
from proxy.sim.errors import ApiError, Family, invalid, missing
from proxy.sim.faults import Faults, over, read_metadata
from proxy.sim.work import Call, PlainAnswer, Shape, Takes, Work

_PATH = "/v1/batches"
_FIELDS = ("input_file_id", "endpoint", "completion_window", "metadata", "output_expires_after")
_MAX_PAIRS, _MAX_KEY_LENGTH, _MAX_VALUE_LENGTH = 16, 64, 512
_UNIT_SECONDS = {"m": 60, "h": 3600, "d": 86_400}


def _read_create(call: Call) -> Work:
    body, books = call.body, call.books
    for name in body:
        if name not in _FIELDS:
            raise invalid(name, f"Unknown parameter: '{name}'.", "unknown_parameter")
    file_id = fields.required_text(body, "input_file_id")
    for name in ("endpoint", "completion_window"):
        if body.get(name) is None:
            raise missing(name)
    endpoint = fields.one_of(body, "endpoint", tuple(LINE_SHAPES), "")
    window = fields.one_of(body, "completion_window", call.scenario.batches.windows, "")
    metadata = _metadata(call)
    output_seconds = _output_seconds(call)
    asked = over(call.faults, read_metadata(metadata or {}))
    file = _input_file(call, file_id)
    books.files.check_room(0)
    books.batches.admit(call.caller)
    now = books.clock.wall()
    rules = call.scenario.batches
    batch = Batch(
        id=call.identity.make("batch_", length=32),
        caller=call.caller,
        number=books.batches.created + 1,
        endpoint=endpoint,
        input_file_id=file.id,
        window=window,
        created_at=now,
        turnaround_seconds=_first(asked.batch_turnaround_seconds, rules.turnaround_seconds),
        cancel_seconds=_first(asked.batch_cancel_seconds, rules.cancel_seconds),
        expires_at=now + _first(asked.batch_expire_seconds, _window_seconds(window)),
        metadata=metadata,
        output_seconds=output_seconds,
        faults=_of_batches(asked),
        content=file.content,
    )
    books.batches.add(batch)
    return _answered(batch)


def _first(asked: float | None, usual: float) -> float:
    return usual if asked is None else asked


def _of_batches(asked: Faults) -> dict[str, object]:
    names = [item.name for item in fields_of(Faults) if item.name.startswith("batch_")]
    return {name: getattr(asked, name) for name in names}


def _window_seconds(window: str) -> float:
    """Return the length of a window such as `24h`; one that cannot be read is a day."""
    number, unit = window[:-1], window[-1:]
    return float(number) * _UNIT_SECONDS[unit] if number.isdecimal() and unit in _UNIT_SECONDS else 86_400.0


def _input_file(call: Call, file_id: str) -> StoredFile:
    try:
        file = call.books.files.find(call.caller, file_id)
    except ApiError:
        raise invalid("input_file_id", f"Invalid 'input_file_id': no file with id '{file_id}'.") from None
    if file.purpose != "batch":
        message = f"Invalid 'input_file_id': the file's purpose is '{file.purpose}', not 'batch'."
        raise invalid("input_file_id", message)
    if not call.books.files.is_processed(file):
        raise invalid("input_file_id", "Invalid 'input_file_id': the file has not been processed yet.")
    return file


def _metadata(call: Call) -> dict[str, str] | None:
    """Return the metadata within the limits of OpenAI's API reference."""
    given = fields.mapping(call.body, "metadata")
    if given is None:
        return None
    if len(given) > _MAX_PAIRS:
        raise invalid("metadata", f"Invalid 'metadata': at most {_MAX_PAIRS} pairs.")
    for key, value in given.items():
        if not isinstance(value, str):
            raise fields.wrong_type(f"metadata.{key}", "a string", value)
        if len(key) > _MAX_KEY_LENGTH or len(value) > _MAX_VALUE_LENGTH:
            limits = f"keys of {_MAX_KEY_LENGTH} and values of {_MAX_VALUE_LENGTH} characters"
            raise invalid(f"metadata.{key}", f"Invalid 'metadata': at most {limits}.")
    return cast("dict[str, str]", dict(given))


def _output_seconds(call: Call) -> int | None:
    given = fields.mapping(call.body, "output_expires_after")
    if given is None:
        return None
    return expiry_seconds(given.get("anchor"), given.get("seconds"), "output_expires_after")


def _answered(batch: Batch) -> Work:
    return Work(PlainAnswer(batch.as_object()), "", 0)


def _found(call: Call) -> Batch:
    batch_id = call.path.removeprefix(f"{_PATH}/").removesuffix("/cancel")
    return call.books.batches.find(call.caller, batch_id)


def _read_retrieve(call: Call) -> Work:
    return _answered(_found(call))


def _read_list(call: Call) -> Work:
    batches = call.books.batches.of(call.caller)
    limit = read_limit(call.query, default=20, high=100)
    page, has_more = page_of(batches, call.query, limit, lambda batch: batch.id)
    return Work(PlainAnswer(list_object([batch.as_object() for batch in page], has_more)), "", 0)


def _read_cancel(call: Call) -> Work:
    """Begin to cancel. A batch that is being cancelled already stays so; one that has ended is refused."""
    batch = _found(call)
    if batch.status in (Status.VALIDATING, Status.IN_PROGRESS):
        batch.cancelled_due = call.books.clock.wall() + batch.cancel_seconds
        call.books.batches.move(batch, Status.CANCELLING)
    elif batch.status is not Status.CANCELLING:
        raise ApiError(409, f"Cannot cancel a batch with status '{batch.status.value}'.")
    return _answered(batch)


_ONE = _PATH + "/{id}"
SHAPES = (
    Shape(_PATH, Family.OPENAI, _read_create, "POST", False, False),
    Shape(_PATH, Family.OPENAI, _read_list, "GET", False, False, Takes.NOTHING),
    Shape(_ONE, Family.OPENAI, _read_retrieve, "GET", False, False, Takes.NOTHING),
    Shape(_ONE + "/cancel", Family.OPENAI, _read_cancel, "POST", False, False, Takes.NOTHING),
)
