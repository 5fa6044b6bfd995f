"""Which requests are alike: one digest of everything that keeps two of them apart. Pure.

In the key are the upstream's connections, method and target (query included), the model, every header but
those listed here (credentials, organisation, project and cookies foremost, even where the upstream has a key
of its own: whoever pays or asks otherwise is another caller), and every member of the body but the ones that
the strategy unites. Values are compared as bytes: `1.0` is not `1`. The order of headers and of members does
not matter.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from hashlib import blake2b

from proxy.core.document import Document
from proxy.http.head import HOP_BY_HOP, Header, RequestHead

KEY_BYTES = 16

PER_CALLER: frozenset[bytes] = frozenset(
    {
        # framing and this hop
        b"content-length",
        b"date",
        b"expect",
        b"host",
        # who asks with which program, from where, for how long
        b"forwarded",
        b"user-agent",
        b"via",
        b"x-forwarded-for",
        b"x-forwarded-host",
        b"x-forwarded-port",
        b"x-forwarded-proto",
        b"x-real-ip",
        # names of one request
        b"idempotency-key",
        b"request-id",
        b"x-client-request-id",
        b"x-correlation-id",
        b"x-idempotency-key",
        b"x-request-id",
        # traces
        b"b3",
        b"baggage",
        b"elastic-apm-traceparent",
        b"newrelic",
        b"sentry-trace",
        b"traceparent",
        b"tracestate",
        b"uber-trace-id",
        b"x-amzn-trace-id",
        b"x-b3-flags",
        b"x-b3-parentspanid",
        b"x-b3-sampled",
        b"x-b3-spanid",
        b"x-b3-traceid",
        b"x-cloud-trace-context",
    }
)
"""Headers that may differ between requests that are carried together; none of them changes an answer."""

PER_CALLER_PREFIXES = (b"x-stainless-", b"x-datadog-")
_OWN_PREFIX = b"x-weir-"
_CODINGS: frozenset[bytes] = frozenset({b"accept-encoding"})


def is_per_caller(name: bytes) -> bool:
    """Tell whether a header (lower-case name) may differ between requests that are carried together."""
    return name in PER_CALLER or name.startswith(PER_CALLER_PREFIXES)


def request_key(
    strategy: str,
    pool_id: int,
    head: RequestHead,
    model: str,
    document: Document | None,
    without: Collection[str] = (),
    kind: bytes = b"",
    any_coding: bool = False,
) -> bytes:
    """Return the key of a request: `KEY_BYTES` bytes, equal for requests that may be carried together.

    `without` names the members of the body that may differ; with `document` as `None` all of it may. `kind`
    is whatever else keeps requests apart. `any_coding` is for strategies that ask for an answer without
    compression anyway: `Accept-Encoding` may then differ.
    """
    digest = blake2b(digest_size=KEY_BYTES)
    parts = [strategy.encode(), b"%d" % pool_id, head.method, head.target]
    parts += [model.encode("utf-8", "surrogatepass"), kind, b"" if document is None else b"body"]
    headers = _kept_headers(head.headers, any_coding)
    parts.append(b"%d" % len(headers))
    for name, value in sorted(headers, key=_by_name):
        parts += (name, value)
    if document is not None:
        for member in sorted(document.keys()):
            if member not in without:
                parts += (member.encode("utf-8", "surrogatepass"), document.get(member) or b"")
    # Every part with its length before it, so that no two lists of parts have the same bytes.
    digest.update(b"".join([b"%d:%b" % (len(part), part) for part in parts]))
    return digest.digest()


def _kept_headers(headers: Iterable[Header], any_coding: bool) -> list[tuple[bytes, bytes]]:
    dropped = HOP_BY_HOP | _CODINGS if any_coding else HOP_BY_HOP
    return [
        (name, value)
        for name, _, value in headers
        if name not in dropped and not is_per_caller(name) and not name.startswith(_OWN_PREFIX)
    ]


def _by_name(header: tuple[bytes, bytes]) -> bytes:
    # The order of a name's own lines means something and stays: sorting is stable.
    return header[0]
