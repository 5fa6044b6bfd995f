"""Ids of files and batches, and what is kept of the request that creates a batch. Pure but for random ids.

Header fields are kept so that lines are sent with them and routes match them. None of them is secret: what
names the caller is sealed, or not kept at all.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterable

from proxy.batch_server.model import HeaderFields
from proxy.core.errors import HEADERS_TOO_LARGE, ProxyError
from proxy.http.head import HOP_BY_HOP, Header, connection_options
from proxy.jobs.sealing import fingerprint
from proxy.upstream.request_head import CREDENTIAL_HEADERS

IDEMPOTENCY_HEADER = b"idempotency-key"
IDEMPOTENT_SECONDS = 24 * 3600.0
"""How long the same `Idempotency-Key` means the same batch."""

_NOT_KEPT = (
    HOP_BY_HOP
    | CREDENTIAL_HEADERS
    | {IDEMPOTENCY_HEADER, b"expect", b"host", b"if-match", b"if-none-match", b"prefer", b"range"}
)
_NOT_KEPT_PREFIXES = (b"accept", b"content-", b"x-stainless-", b"x-weir-")
# Fields that nobody here knows may hold secrets, too; their names say so as a rule.
_SECRET = re.compile(rb"auth|cookie|credential|passw|secret|session|signature|token|api-?key|assertion")
_ID_BYTES = 16
_FILE_ID = re.compile(r"file-[0-9a-f]{32}")
_BATCH_ID = re.compile(r"batch_[0-9a-f]{32}")
_MOST_FIELDS = 64
_MOST_BYTES = 16 * 1024


def kept_headers(headers: Iterable[Header], fields: dict[bytes, bytes]) -> HeaderFields:
    """Return the header fields that lines will be sent with. Raises ProxyError (431) for too many."""
    headers = tuple(headers)
    dropped = _NOT_KEPT | connection_options(fields, headers)
    kept = tuple(
        (name.decode("latin-1"), value.decode("latin-1"))
        for lower, name, value in headers
        if lower not in dropped and not lower.startswith(_NOT_KEPT_PREFIXES) and not _SECRET.search(lower)
    )
    if len(kept) > _MOST_FIELDS or sum(len(name) + len(value) for name, value in kept) > _MOST_BYTES:
        message = f"A batch keeps at most {_MOST_FIELDS} header fields for its lines, of {_MOST_BYTES} bytes."
        raise ProxyError(HEADERS_TOO_LARGE, message)
    return kept


def file_id() -> str:
    """Return the id of a new file, which nobody can guess."""
    return f"file-{secrets.token_hex(_ID_BYTES)}"


def batch_id() -> str:
    """Return the id of a new batch, which nobody can guess."""
    return f"batch_{secrets.token_hex(_ID_BYTES)}"


def named_batch_id(salt: bytes, owner: str, key: bytes, body: bytes, use: int) -> str:
    """Return the id of the batch that a caller asks for with an `Idempotency-Key` and a body.

    `use` counts how often the key has come to mean another batch, from zero.
    """
    digest = fingerprint(salt, b"batch", owner.encode(), key, body, b"%d" % use)
    return f"batch_{digest[: 2 * _ID_BYTES]}"


def is_file_id(text: str) -> bool:
    """Tell whether a text could be the id of a file; no store is asked for anything else."""
    return _FILE_ID.fullmatch(text) is not None


def is_batch_id(text: str) -> bool:
    """Tell whether a text could be the id of a batch."""
    return _BATCH_ID.fullmatch(text) is not None
