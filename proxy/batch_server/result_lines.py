"""Lines of the two result files of a batch, in OpenAI's shapes. Pure.

    {"id":"batch_req_…","custom_id":"…","response":{"status_code":…,"request_id":"…","body":{…}},"error":null}
    {"id":"batch_req_…","custom_id":"…","response":null,"error":{"code":"batch_expired","message":"…"}}

An answer's body stands in its line byte for byte, but for line breaks between its tokens. One that is no JSON
object is quoted in an error of OpenAI's shape, so that every reader of results can read the line.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from enum import Enum

import msgspec
import orjson

from proxy.core.document import Document, DocumentError
from proxy.core.json_edits import quoted

_ID_DIGITS = 32
_MOST_QUOTED_BYTES = 2000
_DEEPEST = 800
_BREAKS = bytes.maketrans(b"\r\n", b"  ")
_STRICT = msgspec.json.Decoder(dict[str, msgspec.Raw])


class NotRun(Enum):
    """Why a line has no answer: code and sentence."""

    EXPIRED = ("batch_expired", "The completion window of the batch ended before this request was run.")
    CANCELLED = ("batch_cancelled", "The batch was cancelled before this request was run.")

    @property
    def code(self) -> str:
        """Return OpenAI's code."""
        return self.value[0]

    @property
    def message(self) -> str:
        """Return the sentence for people."""
        return self.value[1]


@dataclass(frozen=True, slots=True)
class ResultLine:
    """A line with its end, and the file it belongs to: the output where `is_completed`, else the errors."""

    text: bytes = field(repr=False)
    is_completed: bool


def line_id(batch_id: str, number: int) -> str:
    """Return the id of a line's result: the same whenever it is made. `number` counts from zero."""
    digest = hashlib.blake2b(f"{batch_id} {number}".encode(), digest_size=_ID_DIGITS // 2)
    return f"batch_req_{digest.hexdigest()}"


def answered_line(
    batch_id: str, number: int, custom_id: str, status: int, request_id: str, body: bytes
) -> ResultLine:
    """Return the result of a line that was answered by HTTP, by the upstream or by Weir for it.

    A success whose body is no JSON object is none, whatever its status says: it goes to the errors.
    """
    readable = _one_line(body)
    told = _quoted_body(status, body) if readable is None else readable
    response = b'{"status_code":%d,"request_id":%b,"body":%b}' % (status, quoted(request_id), told)
    return ResultLine(
        _line(batch_id, number, custom_id, response, b"null"), status < 300 and readable is not None
    )


def unanswered_line(batch_id: str, number: int, custom_id: str, code: str, message: str) -> ResultLine:
    """Return the result of a line that has no answer, and why."""
    error = b'{"code":%b,"message":%b}' % (quoted(code), quoted(message))
    return ResultLine(_line(batch_id, number, custom_id, b"null", error), is_completed=False)


def not_run_line(batch_id: str, number: int, custom_id: str, why: NotRun) -> ResultLine:
    """Return the result of a line that never ran, or was stopped."""
    return unanswered_line(batch_id, number, custom_id, why.code, why.message)


def _line(batch_id: str, number: int, custom_id: str, response: bytes, error: bytes) -> bytes:
    own_id = line_id(batch_id, number).encode()
    named = quoted(custom_id)
    return b'{"id":"%b","custom_id":%b,"response":%b,"error":%b}\n' % (own_id, named, response, error)


def _one_line(body: bytes) -> bytes | None:
    """Return a JSON object without line breaks, `None` for anything else.

    Within strings JSON allows no line breaks, so that all there are may become spaces.
    """
    try:
        body.decode()
        _STRICT.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return _tolerated(body)
    return body.translate(_BREAKS) if b"\n" in body or b"\r" in body else body


def _tolerated(body: bytes) -> bytes | None:
    # Half a surrogate pair, where an answer was cut within a character: most readers take it.
    try:
        body.decode()
        document = Document.parse(body, max_depth=_DEEPEST)
    except (DocumentError, UnicodeDecodeError):
        return None
    told = document.to_bytes().removeprefix(b"\xef\xbb\xbf")
    return None if _holds_odd_numbers(told) else told.translate(_BREAKS)


def _holds_odd_numbers(body: bytes) -> bool:
    # NaN is no JSON: one such line would make the whole file unreadable for strict readers.
    return b"NaN" in body or b"Infinity" in body


def _quoted_body(status: int, body: bytes) -> bytes:
    shown = body[:_MOST_QUOTED_BYTES].decode("utf-8", "replace")
    rest = "…" if len(body) > _MOST_QUOTED_BYTES else ""
    message = (
        f"The answer, status {status}, is no JSON object: {shown}{rest}" if body else "The answer is empty."
    )
    error = {"message": message, "type": "upstream_error", "param": None, "code": "unreadable_answer"}
    return orjson.dumps({"error": error})
