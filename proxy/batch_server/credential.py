"""A caller's own credentials, as a batch keeps them: sealed for its owner, of no use to other lines.

Owns to whom they are bound; the format is that of `jobs.credentials`.
"""

from __future__ import annotations

from proxy.batch_server.model import HeaderFields, ServedBatch
from proxy.jobs.credentials import open_credential, seal_credential
from proxy.jobs.sealing import Vault


def seal_caller(vault: Vault, owner: str, fields: HeaderFields) -> bytes:
    """Return the blob that `ServedBatch.credential` holds for the header fields that name the caller."""
    return seal_credential(vault, _account(owner), fields)


def open_caller(vault: Vault, batch: ServedBatch) -> HeaderFields:
    """Return the caller's header fields, none for a batch that needs none. Raises `SealError`."""
    if batch.credential is None:
        return ()
    return open_credential(vault, _account(batch.owner), batch.credential)


def _account(owner: str) -> str:
    return f"batches of {owner}"
