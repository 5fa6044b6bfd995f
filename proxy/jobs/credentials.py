"""A caller's own credential at rest: header fields, sealed for the account that they pay for.

Owns the format only; what sealing means says `sealing`. A batch keeps the blob of one of its jobs: they share
the account, which is what the blob is bound to.
"""

from __future__ import annotations

import msgspec

from proxy.jobs.model import HeaderFields
from proxy.jobs.sealing import SealError, Vault

_FIELDS = msgspec.json.Decoder(tuple[tuple[str, str], ...])


def seal_credential(vault: Vault, account: str, fields: HeaderFields) -> bytes:
    """Return the blob that `Job.credential` holds for the header fields that name the caller."""
    return vault.seal(msgspec.json.encode(fields), _context(account))


def open_credential(vault: Vault, account: str, blob: bytes) -> HeaderFields:
    """Return the header fields of a blob. Raises `SealError`."""
    plain = vault.open(blob, _context(account))
    try:
        return _FIELDS.decode(plain)
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise SealError("a credential is not in the format of this release") from None


def _context(account: str) -> str:
    return f"credential of {account}"
