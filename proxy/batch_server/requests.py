"""What callers may ask of `/v1/files` and `/v1/batches`, read and checked. Pure.

Every function raises `ProxyError` (400) that names the field at fault in `param`. Fields and ranges: `openai`
3.57 types/batch_create_params.py, batch_list_params.py, file_create_params.py, file_list_params.py. Beyond
them: more endpoints, as local servers offer them, and any `completion_window` from a second to seven days.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qsl

from proxy.batch_server.model import FilePurpose
from proxy.core.document import Document, DocumentError
from proxy.core.errors import INVALID_BODY, INVALID_VALUE, MISSING_PARAMETER, UNKNOWN_PARAMETER, ProxyError
from proxy.policy.values import duration_seconds

ENDPOINTS = (
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/embeddings",
    "/v1/responses",
    "/v1/moderations",
    "/v1/messages",
    "/v1/rerank",
    "/v1/score",
)
"""The paths that lines may go to: each answers one JSON object with one JSON object."""

FILE_SECONDS = 30 * 24 * 3600
"""How long a file is kept unless its caller says otherwise."""

_LEAST_KEPT_SECONDS = 3600
_MOST_KEPT_SECONDS = FILE_SECONDS
_LEAST_WINDOW_SECONDS = 1.0
_MOST_WINDOW_SECONDS = 7 * 24 * 3600.0
_MOST_PAIRS = 16
_MOST_KEY_CHARACTERS = 64
_MOST_VALUE_CHARACTERS = 512
_DAYS = re.compile(r"[1-9][0-9]{0,2}d", re.ASCII)
_INTEGER = re.compile(r"-?[0-9]{1,12}", re.ASCII)
_MOST_SHOWN_CHARACTERS = 100
_MOST_BATCHES_LISTED = 100
_BATCHES_LISTED = 20
_MOST_FILES_LISTED = 10_000
_CREATE_FIELDS = ("input_file_id", "endpoint", "completion_window", "metadata", "output_expires_after")
_UPLOAD_FIELDS = ("purpose", "expires_after[anchor]", "expires_after[seconds]")
# What others understand by files: none of these is kept here, but asking for them is no mistake.
_OTHER_PURPOSES = frozenset(
    {"assistants", "assistants_output", "evals", "fine-tune", "fine-tune-results", "user_data", "vision"}
)


@dataclass(frozen=True, slots=True)
class BatchWish:
    """A batch that a caller wants. `window` is as written; result files are kept for `output_seconds`."""

    input_file_id: str
    endpoint: str
    window: str
    window_seconds: float
    metadata: tuple[tuple[str, str], ...] | None
    output_seconds: float


@dataclass(frozen=True, slots=True)
class UploadWish:
    """What stands beside an uploaded file: it is kept for `kept_seconds` after its creation."""

    purpose: FilePurpose
    kept_seconds: float


@dataclass(frozen=True, slots=True)
class BatchListing:
    """Which batches to list, newest first, from behind `after`, an id."""

    limit: int
    after: str | None


@dataclass(frozen=True, slots=True)
class FileListing:
    """Which files to list. `is_empty`: a purpose was asked for that no file here has."""

    limit: int
    after: str | None
    purpose: FilePurpose | None
    is_newest_first: bool
    is_empty: bool


def read_batch_wish(body: bytes) -> BatchWish:
    """Read the body of `POST /v1/batches`. What it does not know it refuses, as OpenAI does."""
    try:
        document = Document.parse(body, max_depth=8)
    except DocumentError as problem:
        raise ProxyError(INVALID_BODY, f"The body must be a JSON object ({problem.reason}).") from None
    _refuse_unknown(document.keys(), _CREATE_FIELDS)
    endpoint = _text(document, "endpoint")
    if endpoint not in ENDPOINTS:
        raise _invalid("endpoint", endpoint, f"Supported are {', '.join(ENDPOINTS)}.")
    window = _text(document, "completion_window")
    return BatchWish(
        input_file_id=_text(document, "input_file_id"),
        endpoint=endpoint,
        window=window,
        window_seconds=_window_seconds(window),
        metadata=_metadata(document.value("metadata")),
        output_seconds=_kept_seconds("output_expires_after", document.value("output_expires_after")),
    )


def read_upload_wish(fields: Iterable[tuple[str, str]]) -> UploadWish:
    """Read the form fields that came with a file, the file's own left out."""
    given = dict(fields)
    _refuse_unknown(given, _UPLOAD_FIELDS)
    if "purpose" not in given:
        raise _missing("purpose")
    if given["purpose"] != FilePurpose.BATCH.value:
        raise _invalid("purpose", given["purpose"], "Files are kept for batches only: it must be 'batch'.")
    parts = {name: given.get(f"expires_after[{name}]") for name in ("anchor", "seconds")}
    if not any(value is not None for value in parts.values()):
        return UploadWish(FilePurpose.BATCH, float(FILE_SECONDS))
    seconds = parts["seconds"]
    told: dict[str, Any] = {name: value for name, value in parts.items() if value is not None}
    if seconds is not None and _INTEGER.fullmatch(seconds):
        told["seconds"] = int(seconds)
    return UploadWish(FilePurpose.BATCH, _kept_seconds("expires_after", told))


def read_batch_listing(query: str) -> BatchListing:
    """Read the query of `GET /v1/batches` (without `?`). Words that it does not know say nothing."""
    asked = _query(query)
    limit = _limit(asked, _BATCHES_LISTED, _MOST_BATCHES_LISTED)
    return BatchListing(limit, asked.get("after") or None)


def read_file_listing(query: str) -> FileListing:
    """Read the query of `GET /v1/files` (without `?`)."""
    asked = _query(query)
    order = asked.get("order", "desc")
    if order not in ("asc", "desc"):
        raise _invalid("order", order, "It must be 'asc' or 'desc'.")
    purpose = asked.get("purpose")
    known = next((each for each in FilePurpose if each.value == purpose), None)
    if purpose is not None and known is None and purpose not in _OTHER_PURPOSES:
        raise _invalid("purpose", purpose, "It must be a purpose that files can have, such as 'batch'.")
    limit = _limit(asked, _MOST_FILES_LISTED, _MOST_FILES_LISTED)
    is_empty = purpose is not None and known is None
    return FileListing(limit, asked.get("after") or None, known, order == "desc", is_empty)


def _window_seconds(window: str) -> float:
    try:
        seconds = int(window[:-1]) * 86_400.0 if _DAYS.fullmatch(window) else duration_seconds(window)
    except ValueError:
        seconds = 0.0
    if not _LEAST_WINDOW_SECONDS <= seconds <= _MOST_WINDOW_SECONDS:
        raise _invalid("completion_window", window, "It must be '24h' or another time from '1s' to '7d'.")
    return seconds


def _metadata(value: object) -> tuple[tuple[str, str], ...] | None:
    if value is None:
        return None
    if not isinstance(value, dict):
        raise _invalid("metadata", value, "It must be an object of strings.")
    if len(value) > _MOST_PAIRS:
        raise ProxyError(INVALID_VALUE, f"'metadata' has more than {_MOST_PAIRS} pairs.", "metadata")
    for key, text in value.items():
        param = f"metadata.{_shown(key)}"
        if not key or len(key) > _MOST_KEY_CHARACTERS or not _is_storable(key):
            message = f"Keys of 'metadata' have 1 to {_MOST_KEY_CHARACTERS} characters."
            raise ProxyError(INVALID_VALUE, message, param)
        if not isinstance(text, str) or len(text) > _MOST_VALUE_CHARACTERS or not _is_storable(text):
            message = f"Values of 'metadata' are strings of at most {_MOST_VALUE_CHARACTERS} characters."
            raise ProxyError(INVALID_VALUE, message, param)
    return tuple(value.items())


def _kept_seconds(name: str, value: object) -> float:
    if value is None:
        return float(FILE_SECONDS)
    if not isinstance(value, dict):
        raise _invalid(name, value, "It must be an object with 'anchor' and 'seconds'.")
    _refuse_unknown(value, ("anchor", "seconds"), f"{name}.")
    for part in ("anchor", "seconds"):
        if part not in value:
            raise _missing(f"{name}.{part}")
    if value["anchor"] != "created_at":
        raise _invalid(f"{name}.anchor", value["anchor"], "It must be 'created_at'.")
    seconds = value["seconds"]
    is_number = isinstance(seconds, int) and not isinstance(seconds, bool)
    if not is_number or not _LEAST_KEPT_SECONDS <= seconds <= _MOST_KEPT_SECONDS:
        hint = f"It must be a whole number from {_LEAST_KEPT_SECONDS} to {_MOST_KEPT_SECONDS}."
        raise _invalid(f"{name}.seconds", seconds, hint)
    return float(seconds)


def _text(document: Document, name: str) -> str:
    value = document.value(name)
    if value is None:
        raise _missing(name)
    if not isinstance(value, str) or not value or not _is_storable(value):
        raise _invalid(name, value, "It must be a string that is not empty.")
    return value


def _limit(asked: Mapping[str, str], default: int, most: int) -> int:
    text = asked.get("limit", str(default))
    limit = int(text) if _INTEGER.fullmatch(text) else 0
    if not 1 <= limit <= most:
        raise _invalid("limit", text, f"It must be a whole number from 1 to {most}.")
    return limit


def _query(query: str) -> dict[str, str]:
    return dict(parse_qsl(query, keep_blank_values=True, errors="replace"))


def _refuse_unknown(given: Iterable[str], known: tuple[str, ...], prefix: str = "") -> None:
    for name in given:
        if name not in known:
            shown = f"{prefix}{_shown(name)}"
            raise ProxyError(UNKNOWN_PARAMETER, f"Unknown parameter: '{shown}'.", shown)


def _missing(name: str) -> ProxyError:
    return ProxyError(MISSING_PARAMETER, f"Missing required parameter: '{name}'.", name)


def _invalid(name: str, value: object, wanted: str) -> ProxyError:
    said = f" '{_shown(value)}'" if isinstance(value, str | int | float) else ""
    return ProxyError(INVALID_VALUE, f"Invalid value{said} for '{name}'. {wanted}", name)


def _shown(value: object) -> str:
    text = str(value)
    shortened = text if len(text) <= _MOST_SHOWN_CHARACTERS else f"{text[:_MOST_SHOWN_CHARACTERS]}…"
    return shortened.encode("utf-8", "backslashreplace").decode()


def _is_storable(text: str) -> bool:
    """Tell whether a text has no lone surrogates, which no store and no answer could hold, and no NUL."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return "\0" not in text
