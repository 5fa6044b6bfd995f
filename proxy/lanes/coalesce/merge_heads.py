"""The heads of a merged call and of the answers made from it. Pure; docs/lanes.md lists the rules.

A merged call carries what its callers have in common: headers that may differ are sent only where all of
them say the same, names of single requests never. An answer gets the few headers of the upstream's that are
about the service and not about one call: no request ids, rate limits or cookies.
"""

from __future__ import annotations

from collections.abc import Sequence

from proxy import __version__
from proxy.http.head import Header, RequestHead, ResponseHead
from proxy.lanes.coalesce.keys import is_per_caller

_ONE_REQUEST = frozenset(
    {
        b"idempotency-key",
        b"request-id",
        b"x-client-request-id",
        b"x-correlation-id",
        b"x-idempotency-key",
        b"x-request-id",
    }
)
"""Names of one request, or promises about it: even when equal they are not the merged call's."""

_ANSWERED = frozenset(
    {
        b"access-control-allow-credentials",
        b"access-control-allow-origin",
        b"alt-svc",
        b"cache-control",
        b"content-language",
        b"content-type",
        b"date",
        b"openai-model",
        b"openai-organization",
        b"openai-processing-ms",
        b"openai-project",
        b"openai-version",
        b"retry-after",
        b"retry-after-ms",
        b"server",
        b"strict-transport-security",
        b"vary",
        b"warning",
        b"www-authenticate",
        b"x-content-type-options",
        b"x-should-retry",
    }
)
"""Headers of an upstream's answer to a merged call that each caller gets."""

_ANSWERED_UNCUT = _ANSWERED | {b"content-encoding", b"location"}
"""The same for what each caller gets as it is: without these an error or redirection cannot be read."""


def merged_request_head(heads: Sequence[RequestHead]) -> RequestHead:
    """Return the head of the call that carries all these requests, which have one key."""
    first = heads[0]
    headers = [header for header in first.headers if _is_common(header[0], heads)]
    if b"user-agent" in first.fields and not _is_common(b"user-agent", heads):
        headers.append((b"user-agent", b"User-Agent", f"weir/{__version__}".encode("ascii")))
    return RequestHead(first.method, first.target, first.version, headers)


def _is_common(name: bytes, heads: Sequence[RequestHead]) -> bool:
    if not is_per_caller(name) or name in (b"content-length", b"host", b"expect"):
        return True
    value = heads[0].fields.get(name)
    return name not in _ONE_REQUEST and all(head.fields.get(name) == value for head in heads)


def own_response_head(head: ResponseHead, request_id: str, length_bytes: int | None) -> ResponseHead:
    """Return a caller's own head, made from a merged call's. `length_bytes` is `None` for a stream."""
    answered = _ANSWERED_UNCUT if head.status >= 300 else _ANSWERED
    headers: list[Header] = [header for header in head.headers if header[0] in answered]
    headers.append((b"x-request-id", b"x-request-id", request_id.encode("ascii")))
    if length_bytes is not None:
        headers.append((b"content-length", b"Content-Length", b"%d" % length_bytes))
    return ResponseHead(head.status, head.reason, headers, head.keep_alive)
