"""Reading a file of requests, one JSON object a line: bare bodies, recorded requests, lines of a batch file.

    {"model": …, "messages": […]}                                   a body to the default path
    {"path": "/v1/responses", "headers": {…}, "body": {…}}          a request; `url` may say the path
    {"custom_id": …, "method": "POST", "url": …, "body": {…}}       a line of an OpenAI batch file

Bodies keep their bytes; null is none. Other JSON is a body too: the pipeline knows what to do with it. What
is no JSON at all (a line cut short, a log line in between) was no request, and is reported.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping

from proxy.core.document import Document, DocumentError
from proxy.pipeline import Request

_ENVELOPE = frozenset({"path", "url", "headers", "method", "custom_id"})


def read_requests(
    lines: Iterable[bytes],
    default: Request,
    path_of: Callable[[bytes], str],
    unreadable: Callable[[int], None],
) -> Iterator[Request]:
    """Yield the requests of a file; blank lines are none.

    `default` gives method, path and headers where a line has none of its own; a line's headers are added to
    its. `path_of` turns a request target into a path and may raise `ProxyError`, which ends the reading.
    `unreadable` is called with the number (from 1) of each line that is no JSON.
    """
    for number, line in enumerate(lines, 1):
        text = line.strip()
        if not text:
            continue
        request = _read(text, default, path_of)
        if request is None:
            unreadable(number)
        else:
            yield request


def _read(line: bytes, default: Request, path_of: Callable[[bytes], str]) -> Request | None:
    try:
        document = Document.parse(line)
    except DocumentError:
        return Request(default.method, default.path, default.header, line) if _is_json(line) else None
    body = document.get("body")
    if body is None or not document.has_any(_ENVELOPE):
        return Request(default.method, default.path, default.header, line)
    if body.startswith(b'"'):
        text = document.value("body")
        body = text.encode("utf-8", "surrogatepass") if isinstance(text, str) else body
    elif body == b"null":
        body = b""
    method, target = document.value("method"), document.value("path") or document.value("url")
    return Request(
        method.upper() if isinstance(method, str) else default.method,
        path_of(target.encode("utf-8", "replace")) if isinstance(target, str) else default.path,
        _header_lookup(document.value("headers"), default),
        body,
    )


def _is_json(line: bytes) -> bool:
    try:
        json.loads(line)
    except ValueError:
        return False
    except RecursionError:
        # Deeper than this reader goes, which the pipeline has a rule for.
        return True
    return True


def _header_lookup(headers: object, default: Request) -> Callable[[str], str | None]:
    if not isinstance(headers, Mapping):
        return default.header
    own = {str(name).lower(): value for name, value in headers.items() if isinstance(value, str)}

    def lookup(name: str) -> str | None:
        value = own.get(name)
        return default.header(name) if value is None else value

    return lookup
