"""What is decided about on the event loop and what in a thread, by what a body could cost.

On the loop nothing may take longer than about 10 ms. In a thread it may, for as long as the caller waits.
"""

from __future__ import annotations

import msgspec

from proxy.core.json_measure import is_quick
from proxy.edge.request_body import plain_body
from proxy.explanation import explain_request
from proxy.http.head import RequestHead
from proxy.pipeline import Decision, Pipeline, Request
from proxy.policy.model import Route

LONG_BODY_BYTES = 256 * 1024
"""A longer body is decided about in a thread: joining, parsing and editing take up to 10 ms a MiB."""

_EXPLAIN = "x-weir-explain"
_EXPLAIN_FIELD = b"x-weir-explain"
_INLINE_COUNT_BYTES = 16 * 1024
_FEW_PARTS = 4_000
"""What looks at a member or element takes up to 4 us."""
_FEW_COUNTED_PARTS = 250
"""What counts one takes up to 60 us."""


def takes_long(head: RequestHead, body: bytes, candidates: tuple[Route, ...]) -> bool:
    """Tell whether deciding about a body could hold the event loop."""
    if b"content-encoding" in head.fields:
        return bool(body)  # whatever a few bytes may inflate to
    counts = asks_dry_run(head, candidates)
    for route in candidates:
        if route.may_count:
            counts = True
    if counts:
        return not is_quick(body, _INLINE_COUNT_BYTES, _FEW_COUNTED_PARTS)
    return not is_quick(body, LONG_BODY_BYTES, _FEW_PARTS)


def read_limit_bytes(candidates: tuple[Route, ...]) -> int:
    """Return how large a body may be that is read for these routes, 0 for any."""
    if len(candidates) == 1:
        return candidates[0].max_body_bytes
    return max(route.max_body_bytes for route in candidates)


def must_be_read(head: RequestHead, candidates: tuple[Route, ...]) -> bool:
    """Tell whether a request is refused rather than passed unread."""
    return asks_dry_run(head, candidates) or any(route.refuses_unread for route in candidates)


def asks_dry_run(head: RequestHead, candidates: tuple[Route, ...]) -> bool:
    """Tell whether a caller asks what would happen where it may; only the body tells for certain."""
    if head.fields.get(_EXPLAIN_FIELD) != b"dry-run":
        return False
    return any(_EXPLAIN in route.allow_caller for route in candidates)


def served(
    pipeline: Pipeline, head: RequestHead, path: str, candidates: tuple[Route, ...]
) -> Decision | None:
    """Return the decision for a request that Weir's own batch API answers now, `None` for any other.

    Where its caller asks, and may ask, what would happen, nothing is done: it is read and explained.
    """
    decision = pipeline.served(path, candidates)
    if decision is None or (decision.route is not None and asks_dry_run(head, (decision.route,))):
        return None
    return decision


def judge(
    pipeline: Pipeline, candidates: tuple[Route, ...], head: RequestHead, request: Request, max_bytes: int
) -> tuple[Decision | bytes, bool]:
    """Return the decision about a request, or an explanation where one is asked for and allowed.

    `request` has its body as it came; the second value tells whether that had to be decompressed, to
    `max_bytes` at most. Raises ProxyError and Abandoned.
    """
    must_read = any(route.refuses_unread for route in candidates)
    plain = plain_body(head, request.body, max_bytes, must_read)
    is_decoded = plain is not request.body
    if is_decoded:
        request = msgspec.structs.replace(request, body=plain)
    if asks_dry_run(head, candidates):
        served = pipeline.served(request.path, candidates)
        route = pipeline.route(request, candidates) if served is None else served.route
        if route is not None and _EXPLAIN in route.allow_caller:
            return explain_request(pipeline, request), False
    decision = pipeline.decide(request, candidates)
    if decision.document is not None and len(plain) > LONG_BODY_BYTES:
        # Here is a thread; the loop, which will ask for the bytes, then finds them spliced.
        decision.document.to_bytes()
    return decision, is_decoded
