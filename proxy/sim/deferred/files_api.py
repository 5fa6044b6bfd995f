"""/v1/files: upload, list, retrieve, content, delete.

It owns the form of an upload and the lists. What a file may be used for is its user's business.
"""

from __future__ import annotations

from collections.abc import Mapping

from proxy.sim.deferred.files import StoredFile
from proxy.sim.deferred.paging import list_object, page_of, read_limit
from proxy.sim.errors import ApiError, Family, invalid, missing
from proxy.sim.work import Call, PlainAnswer, Shape, Takes, Work

BATCH_SECONDS = 30 * 24 * 3600
_PATH = "/v1/files"
_PURPOSES = ("assistants", "batch", "fine-tune", "vision", "user_data", "evals")
_EXPIRY_SECONDS = (3600, 2_592_000)
_FIELDS = ("purpose", "expires_after[anchor]", "expires_after[seconds]")
_MAX_PAGE = 10_000


def expiry_seconds(anchor: object, seconds: object, param: str) -> int:
    """Return an expiry in seconds after creation. Raises ApiError (400) for another anchor or range.

    The range, an hour to thirty days, is the one of OpenAI's API reference.
    """
    if anchor != "created_at":
        raise invalid(f"{param}.anchor", "Invalid value: the anchor must be 'created_at'.")
    low, high = _EXPIRY_SECONDS
    number = int(seconds) if isinstance(seconds, str) and seconds.isdecimal() else seconds
    if isinstance(number, bool) or not isinstance(number, int) or not low <= number <= high:
        raise invalid(f"{param}.seconds", f"Invalid '{param}.seconds': expected {low} to {high}.")
    return number


def _read_upload(call: Call) -> Work:
    form = call.body
    for name in form:
        if name not in _FIELDS:
            raise invalid(name, f"Unknown parameter: '{name}'.", "unknown_parameter")
    purpose = form.get("purpose")
    if purpose is None:
        raise missing("purpose")
    if purpose not in _PURPOSES:
        raise invalid("purpose", f"Invalid value: '{purpose}'. Supported values are: {', '.join(_PURPOSES)}.")
    if call.upload is None:
        raise missing("file")
    _check_size(call, str(purpose), len(call.upload.content))
    now = call.books.clock.wall()
    seconds = _lifetime(form, str(purpose))
    file = StoredFile(
        id=call.identity.make("file-", length=22),
        caller=call.caller,
        filename=call.upload.filename,
        purpose=str(purpose),
        content=call.upload.content,
        created_at=now,
        expires_at=None if seconds is None else now + seconds,
    )
    call.books.files.keep(file)
    return _answered(call, file)


def _check_size(call: Call, purpose: str, size: int) -> None:
    limit = call.scenario.batches.max_bytes
    if purpose == "batch" and size > limit:
        message = f"A file for a batch may have {limit:,} bytes, this one has {size:,}."
        raise ApiError(413, message, param="file", code="content_too_large")


def _lifetime(form: Mapping[str, object], purpose: str) -> int | None:
    anchor, seconds = form.get("expires_after[anchor]"), form.get("expires_after[seconds]")
    if anchor is not None or seconds is not None:
        return expiry_seconds(anchor, seconds, "expires_after")
    return BATCH_SECONDS if purpose == "batch" else None


def _read_list(call: Call) -> Work:
    query = call.query
    files = [
        file
        for file in call.books.files.of(call.caller)
        if "purpose" not in query or query["purpose"] == file.purpose
    ]
    order = query.get("order", "desc")
    if order not in ("asc", "desc"):
        raise invalid("order", f"Invalid value: '{order}'. Supported values are: 'asc', 'desc'.")
    if order == "desc":
        files.reverse()
    page, has_more = page_of(files, query, read_limit(query, _MAX_PAGE, _MAX_PAGE), lambda file: file.id)
    objects = [file.as_object(call.books.files.is_processed(file)) for file in page]
    return Work(PlainAnswer(list_object(objects, has_more)), "", 0)


def _found(call: Call) -> StoredFile:
    file_id = call.path.removeprefix(f"{_PATH}/").removesuffix("/content")
    return call.books.files.find(call.caller, file_id)


def _answered(call: Call, file: StoredFile) -> Work:
    return Work(PlainAnswer(file.as_object(call.books.files.is_processed(file))), "", 0)


def _read_retrieve(call: Call) -> Work:
    return _answered(call, _found(call))


def _read_content(call: Call) -> Work:
    return Work(PlainAnswer({}), "", 0, content=_found(call).content)


def _read_delete(call: Call) -> Work:
    file = _found(call)
    call.books.files.remove(call.caller, file.id)
    return Work(PlainAnswer({"id": file.id, "object": "file", "deleted": True}), "", 0)


_ONE = _PATH + "/{id}"
SHAPES = (
    Shape(_PATH, Family.OPENAI, _read_upload, "POST", False, False, Takes.FORM),
    Shape(_PATH, Family.OPENAI, _read_list, "GET", False, False, Takes.NOTHING),
    Shape(_ONE, Family.OPENAI, _read_retrieve, "GET", False, False, Takes.NOTHING),
    Shape(_ONE, Family.OPENAI, _read_delete, "DELETE", False, False, Takes.NOTHING),
    Shape(_ONE + "/content", Family.OPENAI, _read_content, "GET", False, False, Takes.NOTHING),
)
