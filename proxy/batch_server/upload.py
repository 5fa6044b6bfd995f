"""An uploaded file on its way from a caller's form into the store, chunk by chunk, never whole in memory.

Owns what a form may look like: parts in any order, one of them the file. Refuses what no client of this API
sends: forms within forms, encoded parts, a field given twice.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TypeVar, cast

from aiohttp import BodyPartReader, MultipartReader, StreamReader

from proxy.batch_server.incoming import IncomingBody, too_large
from proxy.batch_server.lines import MAX_INPUT_BYTES
from proxy.batch_server.requests import read_upload_wish
from proxy.core.errors import INVALID_BODY, INVALID_VALUE, MISSING_PARAMETER, ProxyError

T = TypeVar("T")

MAX_FORM_BYTES = MAX_INPUT_BYTES + 64 * 1024
"""Of a whole upload: the file, and what stands around it."""

CHUNK_BYTES = 1024 * 1024

_STEP_BYTES = 128 * 1024
_LONGEST_FIELD_BYTES = 4096
_MOST_FIELDS = 16
_LONGEST_NAME_CHARACTERS = 255
_UNNAMED = "file.jsonl"
_PLAIN_CODINGS = frozenset({"", "identity", "binary", "8bit", "7bit"})

Keep = Callable[[int, bytes], Awaitable[None]]
"""Keeps a numbered chunk."""


@dataclass(slots=True)
class Form:
    """What a form held: its fields but the file's, and how large the file was, `None` chunks for no file."""

    most_file_bytes: int
    fields: list[tuple[str, str]] = field(default_factory=list)
    filename: str = ""
    size_bytes: int = 0
    chunk_count: int | None = None


async def read_form(
    content_type: str, body: IncomingBody, keep: Keep, most_file_bytes: int = MAX_INPUT_BYTES
) -> Form:
    """Read a form to its end, passing the file to `keep`.

    Raises ProxyError (400, 413) and what `keep` raises.
    """
    form = Form(most_file_bytes)
    try:
        reader = MultipartReader({"Content-Type": content_type}, cast(StreamReader, body))
    except Exception:
        message = "An upload is a multipart/form-data form with a file and its purpose."
        raise ProxyError(INVALID_BODY, message) from None
    while (part := await _parsed(reader.next())) is not None:
        await _read_part(form, part, keep)
    while await body.read():
        pass  # what follows the last boundary means nothing (RFC 2046 section 5.1.1)
    if form.chunk_count is None:
        raise ProxyError(MISSING_PARAMETER, "Missing required parameter: 'file'.", "file")
    if not form.size_bytes:
        raise ProxyError(INVALID_VALUE, "The file is empty.", "file")
    return form


async def _read_part(form: Form, part: MultipartReader | BodyPartReader, keep: Keep) -> None:
    name = None
    if isinstance(part, BodyPartReader) and not _is_encoded(part):
        name = await _parsed(_named(part))
    if name is None:
        message = "Each part of an upload has a name, and none is encoded or a form of its own."
        raise ProxyError(INVALID_BODY, message)
    assert isinstance(part, BodyPartReader)
    if name == "file":
        if form.chunk_count is not None:
            raise ProxyError(INVALID_VALUE, "One upload holds one file.", "file")
        form.filename = _shown_name(part.filename)
        form.chunk_count = 0
        await _keep_file(form, part, keep)
        return
    if len(form.fields) >= _MOST_FIELDS or any(name == known for known, _ in form.fields):
        raise ProxyError(INVALID_VALUE, "A field is given twice, or there are too many.", _shown(name))
    form.fields.append((name, await _text_of(part, name)))
    if name == "purpose":
        # Said before the file has come, it need not come.
        read_upload_wish(form.fields[-1:])


async def _named(part: BodyPartReader) -> str | None:
    part.filename  # noqa: B018 - computed here, where what is wrong with it is caught
    return part.name


def _is_encoded(part: BodyPartReader) -> bool:
    codings = (part.headers.get("Content-Transfer-Encoding", ""), part.headers.get("Content-Encoding", ""))
    return any(coding.strip().lower() not in _PLAIN_CODINGS for coding in codings)


async def _keep_file(form: Form, part: BodyPartReader, keep: Keep) -> None:
    waiting = bytearray()
    index = 0
    while not part.at_eof():
        data = await _parsed(part.read_chunk(_STEP_BYTES))
        form.size_bytes += len(data)
        if form.size_bytes > form.most_file_bytes:
            raise too_large(form.most_file_bytes)
        waiting += data
        if len(waiting) >= CHUNK_BYTES:
            await keep(index, bytes(waiting[:CHUNK_BYTES]))
            del waiting[:CHUNK_BYTES]
            index += 1
    if waiting:
        await keep(index, bytes(waiting))
        index += 1
    form.chunk_count = index


async def _text_of(part: BodyPartReader, name: str) -> str:
    value = bytearray()
    while not part.at_eof():
        value += await _parsed(part.read_chunk(_LONGEST_FIELD_BYTES))
        if len(value) > _LONGEST_FIELD_BYTES:
            raise ProxyError(INVALID_VALUE, "A field of the form is too long.", _shown(name))
    return value.decode("utf-8", "replace")


def _shown(name: str) -> str:
    return name[:_LONGEST_NAME_CHARACTERS].encode("utf-8", "backslashreplace").decode()


def _shown_name(filename: str | None) -> str:
    """Return a file's name without its folders and whatever could not be told in a header or as JSON."""
    last = (filename or "").replace("\\", "/").rpartition("/")[2]
    shown = "".join(each for each in last if each.isprintable())[:_LONGEST_NAME_CHARACTERS]
    return shown.encode("utf-8", "replace").decode().strip() or _UNNAMED


async def _parsed(step: Awaitable[T]) -> T:
    """Return what the form's parser found; its many kinds of errors all mean the same."""
    try:
        return await step
    except ProxyError:
        raise
    except Exception:
        message = "The body is no complete multipart form: it is malformed or was cut off."
        raise ProxyError(INVALID_BODY, message) from None
