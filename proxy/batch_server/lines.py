"""Checks an input file of a batch while it is read, piece by piece. Pure.

Owns what makes a line unfit for any batch, in the words of OpenAI: `invalid_json_line`, `url_mismatch`,
`duplicate_custom_id`, `empty_file`, `too_many_tasks` and `invalid_request` stand in Microsoft's list for the
same API (Foundry, "Batch troubleshooting"), `missing_required_parameter` is OpenAI's code for a field that is
not there. Refuses to judge what an endpoint makes of a body: such a line fails alone, when it runs. Unlike
OpenAI it takes several models in one file, and lines that name none where a server has only one.
"""

from __future__ import annotations

from dataclasses import dataclass

from proxy.batch_server.beginnings import beginning
from proxy.batch_server.model import LineProblem
from proxy.core.document import Document, DocumentError
from proxy.dialects import dialect_for_path

MAX_LINES = 50_000
MAX_INPUT_BYTES = 200_000_000
"""OpenAI's guide: 50,000 requests and 200 MB a batch."""

MAX_LINE_BYTES = 32 * 1024**2
MAX_CUSTOM_ID_CHARACTERS = 512
MAX_PROBLEMS = 100
_MAX_MODEL_CHARACTERS = 256
_MAX_SHOWN_CHARACTERS = 100
_BODY_DEPTH = 512
_BOM = b"\xef\xbb\xbf"
_BLANKS = b" \t\r\n"
_REFUSED_FIELDS = ("stream", "background")
_REASONS = {
    "too_deep": "The JSON of this line is nested too deeply.",
    "too_many_parts": "The JSON of this line has too many parts.",
}


@dataclass(frozen=True, slots=True)
class InputLine:
    """A line that can be run.

    number          from zero
    offset, length  where its text stands in the file, in bytes, without its end and without a byte order mark
    custom_id       as the caller named it
    model           that its body names, empty for none
    beginning       digests of how its prompt begins (`beginnings`)
    """

    number: int
    offset: int
    length: int
    custom_id: str
    model: str
    beginning: bytes


@dataclass(frozen=True, slots=True)
class CheckedInput:
    """What an input file says.

    lines           that can be run, in the order of the file
    problems        the first 100 of `problem_count`; any at all fail the batch
    model           of all lines, empty where they name several or none
    """

    lines: tuple[InputLine, ...]
    problems: tuple[LineProblem, ...]
    problem_count: int
    model: str


class LineChecker:
    """Checks one file whose lines go to `endpoint`.

    It keeps one line at a time, at most `max_line_bytes` of it. A MiB of short lines takes some 60 ms:
    feed it in a thread of its own.
    """

    def __init__(
        self, endpoint: str, max_lines: int = MAX_LINES, max_line_bytes: int = MAX_LINE_BYTES
    ) -> None:
        self._endpoint = endpoint
        self._dialect = dialect_for_path(endpoint)
        self._max_lines = max_lines
        self._max_line_bytes = max_line_bytes
        self._lines: list[InputLine] = []
        self._seen: set[str] = set()
        self._models: dict[str, str] = {}
        self._problems: list[LineProblem] = []
        self._problem_count = 0
        # The line being read: its number, where it begins, its bytes so far (none once it is too long).
        self._number = 0
        self._offset = 0
        self._parts: list[bytes] = []
        self._length = 0
        self._blank_since: int | None = None
        self._has_content = False
        self._is_over = False

    @property
    def is_hopeless(self) -> bool:
        """Whether the rest of the file is not looked at any more: it has too many lines."""
        return self._is_over

    def feed(self, chunk: bytes) -> None:
        """Take the next bytes of the file, cut anywhere."""
        position = 0
        while not self._is_over:
            if self._number >= self._max_lines and self._skips_blanks(chunk, position):
                return
            end = chunk.find(b"\n", position)
            if end < 0:
                self._add(chunk[position:])
                return
            self._add(chunk[position:end])
            self._end_line(with_break=True)
            position = end + 1

    def finish(self) -> CheckedInput:
        """Say what the whole file was."""
        if self._length and not self._is_over:
            self._end_line(with_break=False)
        if not self._has_content and not self._is_over:
            message = "The input file is empty: a batch has at least one request."
            self._note(LineProblem("empty_file", message))
        model = next(iter(self._models)) if len(self._models) == 1 else ""
        return CheckedInput(tuple(self._lines), tuple(self._problems), self._problem_count, model)

    def _skips_blanks(self, chunk: bytes, position: int) -> bool:
        """Pass over blank lines beyond the last allowed one; anything else there is one line too many."""
        if chunk[position:].strip(_BLANKS):
            self._is_over = True
            message = f"The input file has more than {self._max_lines:,} lines."
            self._note(LineProblem("too_many_tasks", message))
        return True

    def _add(self, part: bytes) -> None:
        self._length += len(part)
        if self._length <= self._max_line_bytes:
            self._parts.append(part)
        else:
            self._parts.clear()

    def _end_line(self, *, with_break: bool) -> None:
        text = b"".join(self._parts)
        is_too_long = self._length > self._max_line_bytes
        if is_too_long or text.strip(_BLANKS):
            self._note_blanks()
            self._has_content = True
            if is_too_long:
                self._note_line("invalid_request", f"This line has more than {self._max_line_bytes:,} bytes.")
            else:
                self._check(text)
        elif self._blank_since is None:
            self._blank_since = self._number
        self._offset += self._length + with_break
        self._number += 1
        self._parts, self._length = [], 0

    def _note_blanks(self) -> None:
        if self._blank_since is not None:
            message = "This line is blank, and requests follow it."
            self._note(LineProblem("invalid_json_line", message, self._blank_since + 1))
            self._blank_since = None

    def _check(self, text: bytes) -> None:
        try:
            self._lines.append(self._read(text))
        except _Unfit as problem:
            self._note_line(problem.code, problem.message, problem.param)

    def _read(self, text: bytes) -> InputLine:
        offset = self._offset
        if offset == 0 and text.startswith(_BOM):
            text, offset = text[len(_BOM) :], len(_BOM)
        text = text.rstrip(b"\r")
        line = _envelope(text)
        custom_id = self._custom_id(line)
        if _required(line, "method") != "POST":
            raise _Unfit("invalid_request", "The method must be POST.", "method")
        url = _required(line, "url")
        if url != self._endpoint:
            message = f"The URL '{_shown(url)}' is not the endpoint of the batch, '{self._endpoint}'."
            raise _Unfit("url_mismatch", message, "url")
        body = _body(line)
        model = self._model(body.value("model"))
        self._seen.add(custom_id)
        return InputLine(self._number, offset, len(text), custom_id, model, beginning(body, self._dialect))

    def _custom_id(self, line: Document) -> str:
        custom_id = _required(line, "custom_id")
        if len(custom_id) > MAX_CUSTOM_ID_CHARACTERS or not _is_unicode(custom_id):
            message = f"A custom_id has at most {MAX_CUSTOM_ID_CHARACTERS} characters, all of them Unicode's."
            raise _Unfit("invalid_request", message, "custom_id")
        if custom_id in self._seen:
            message = f"The custom_id '{_shown(custom_id)}' is that of an earlier line."
            raise _Unfit("duplicate_custom_id", message, "custom_id")
        return custom_id

    def _model(self, value: object) -> str:
        text = value[:_MAX_MODEL_CHARACTERS] if isinstance(value, str) else ""
        name = text.encode("utf-8", "replace").decode()
        # One text for all lines that name the same one.
        return self._models.setdefault(name, name)

    def _note_line(self, code: str, message: str, param: str | None = None) -> None:
        self._note(LineProblem(code, message, self._number + 1, param))

    def _note(self, problem: LineProblem) -> None:
        self._problem_count += 1
        if len(self._problems) < MAX_PROBLEMS:
            self._problems.append(problem)


def request_body(text: bytes) -> bytes:
    """Return the body of a checked line as its caller wrote it; `text` are the bytes of an `InputLine`."""
    return _envelope(text).get("body") or b""


class _Unfit(Exception):
    """Why a line cannot be run."""

    def __init__(self, code: str, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.param = param


def _envelope(text: bytes) -> Document:
    try:
        text.decode()
        return Document.parse(text, max_depth=_BODY_DEPTH + 1)
    except UnicodeDecodeError:
        raise _Unfit("invalid_json_line", "This line is not UTF-8.") from None
    except DocumentError as problem:
        message = _REASONS.get(problem.reason, "This line is not a JSON object.")
        code = "invalid_request" if problem.reason in _REASONS else "invalid_json_line"
        raise _Unfit(code, message) from None


def _body(line: Document) -> Document:
    raw = line.get("body")
    if raw is None or raw == b"null":
        raise _missing("body")
    try:
        body = Document.parse(raw, max_depth=_BODY_DEPTH)
    except DocumentError as problem:
        message = _REASONS.get(problem.reason, "The body must be a JSON object.")
        raise _Unfit("invalid_request", message, "body") from None
    for name in _REFUSED_FIELDS:
        # Duplicated keys and what lenient servers take for true are no way around it.
        if any(value not in (b"false", b"null") for value in body.every(name)):
            raise _Unfit("invalid_request", f"A batch does not support '{name}'.", f"body.{name}")
    return body


def _required(line: Document, name: str) -> str:
    value = line.value(name)
    if value is None or value == "":
        raise _missing(name)
    if not isinstance(value, str):
        raise _Unfit("invalid_request", f"'{name}' must be a string.", name)
    return value


def _missing(name: str) -> _Unfit:
    return _Unfit("missing_required_parameter", f"This line has no '{name}'.", name)


def _is_unicode(text: str) -> bool:
    """Tell whether a text has no lone surrogates, which not every reader of results could read."""
    return not any("\ud800" <= character <= "\udfff" for character in text)


def _shown(text: str) -> str:
    shortened = text if len(text) <= _MAX_SHOWN_CHARACTERS else f"{text[:_MAX_SHOWN_CHARACTERS]}…"
    return shortened.encode("utf-8", "backslashreplace").decode()
