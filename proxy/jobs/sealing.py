"""What is encrypted at rest, and digests by which credentials are told apart without being kept.

    seal         AES-256-GCM under a key derived (HKDF-SHA256) from `WEIR_SECRET_KEY`; the context (whose it
                 is) is bound in, so that a blob moved to another record does not open
    fingerprint  HMAC-SHA256 under the store's salt

Blob: one byte of version (0 plain, 1 sealed); sealed: four bytes that name the key, twelve of nonce, the
rest. Owns no key storage and refuses keys that somebody could guess.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Sequence
from typing import Protocol

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from proxy.core.upstream import Secret

SHORTEST_SECRET_CHARACTERS = 32

_PLAIN = b"\x00"
_SEALED = b"\x01"
_KEY_ID_BYTES = 4
_NONCE_BYTES = 12
NAMING_BYTES = 1 + _KEY_ID_BYTES
"""How much of a blob says which key it needs."""
_HEAD_BYTES = 1 + _KEY_ID_BYTES + _NONCE_BYTES


class SealError(Exception):
    """A blob that cannot be opened, or a key that cannot be used; the message says why and holds neither."""


class Vault(Protocol):
    """What blobs go through on their way to and from a store."""

    def seal(self, plain: bytes, context: str) -> bytes:
        """Return the blob to keep."""
        ...

    def open(self, blob: bytes, context: str) -> bytes:
        """Return what was sealed with the same context. Raises `SealError`."""
        ...

    def knows(self, beginning: bytes) -> bool:
        """Tell whether a blob with these first `NAMING_BYTES` bytes was made under a key that is here."""
        ...

    def key_ids(self) -> tuple[str, ...]:
        """Return the ids of the keys, the sealing one first: they tell keys apart and nothing about them."""
        ...


class PlainVault:
    """Keeps blobs readable: no key is configured."""

    def seal(self, plain: bytes, context: str) -> bytes:
        """See `Vault`."""
        return _PLAIN + plain

    def open(self, blob: bytes, context: str) -> bytes:
        """See `Vault`."""
        if blob.startswith(_PLAIN):
            return blob[1:]
        raise SealError(
            "this is encrypted and no WEIR_SECRET_KEY is set: set the key that it was stored with"
        )

    def knows(self, beginning: bytes) -> bool:
        """See `Vault`."""
        return beginning.startswith(_PLAIN)

    def key_ids(self) -> tuple[str, ...]:
        """See `Vault`."""
        return ()


class SecretVault:
    """Seals with the first of its keys and opens with any, so that a key can be replaced.

    `secrets_` are texts of at least 32 characters. Raises `SealError` for none or a shorter one.
    """

    def __init__(self, secrets_: Sequence[Secret]) -> None:
        if not secrets_:
            raise SealError("WEIR_SECRET_KEY is empty")
        for secret in secrets_:
            if len(secret.reveal()) < SHORTEST_SECRET_CHARACTERS:
                raise SealError(
                    f"a key in WEIR_SECRET_KEY is shorter than {SHORTEST_SECRET_CHARACTERS} characters: "
                    'make one with python3 -c "import secrets; print(secrets.token_urlsafe(32))"'
                )
        keys = [_derived(secret, b"weir seal 1") for secret in secrets_]
        self._keys = {hashlib.sha256(key).digest()[:_KEY_ID_BYTES]: AESGCM(key) for key in reversed(keys)}
        self._current = hashlib.sha256(keys[0]).digest()[:_KEY_ID_BYTES]

    def __repr__(self) -> str:
        return f"SecretVault({len(self._keys)} keys)"

    def seal(self, plain: bytes, context: str) -> bytes:
        """See `Vault`."""
        head = _SEALED + self._current + secrets.token_bytes(_NONCE_BYTES)
        nonce = head[1 + _KEY_ID_BYTES :]
        return head + self._keys[self._current].encrypt(nonce, plain, _bound(head, context))

    def open(self, blob: bytes, context: str) -> bytes:
        """See `Vault`. What was stored before there was a key opens as well."""
        if blob.startswith(_PLAIN):
            return blob[1:]
        head = blob[:_HEAD_BYTES]
        if len(head) < _HEAD_BYTES or not head.startswith(_SEALED):
            raise SealError("this was not sealed by Weir, or by a later release")
        key = self._keys.get(head[1 : 1 + _KEY_ID_BYTES])
        if key is None:
            raise SealError(
                "this was sealed with another WEIR_SECRET_KEY: add the former key behind the present one, "
                "divided by a comma"
            )
        try:
            return key.decrypt(head[1 + _KEY_ID_BYTES :], blob[_HEAD_BYTES:], _bound(head, context))
        except InvalidTag:
            raise SealError("this was changed after it was sealed, or belongs to another record") from None

    def knows(self, beginning: bytes) -> bool:
        """See `Vault`."""
        return beginning.startswith(_PLAIN) or beginning[1:NAMING_BYTES] in self._keys

    def key_ids(self) -> tuple[str, ...]:
        """See `Vault`."""
        others = [key_id.hex() for key_id in self._keys if key_id != self._current]
        return (self._current.hex(), *others)


def unopenable(vault: Vault, beginnings: Sequence[bytes]) -> str | None:
    """Return a sentence about stored blobs that need a key which is not here, `None` if none does."""
    strange = {one[1:NAMING_BYTES].hex() for one in beginnings if not vault.knows(one)}
    if not strange:
        return None
    held = ", ".join(vault.key_ids()) or "none"
    return (
        f"jobs in it are sealed with another WEIR_SECRET_KEY (key {', '.join(sorted(strange))}; this process "
        f"has {held}): they will fail and their answers cannot be read; add the former key behind the "
        "present one, divided by a comma"
    )


def vault_from(value: str | None) -> SecretVault | None:
    """Return the vault that `WEIR_SECRET_KEY` asks for: keys divided by commas, the first one seals.

    `None` where it is not set. Raises `SealError`.
    """
    if value is None or not value.strip():
        return None
    return SecretVault([Secret(part.strip()) for part in value.split(",") if part.strip()])


def fingerprint(salt: bytes, *parts: bytes) -> str:
    """Return 64 hexadecimal digits that are equal for equal parts under one salt, and tell nothing else."""
    digest = hmac.new(salt, digestmod=hashlib.sha256)
    for part in parts:
        # The length keeps ("a", "bc") from being taken for ("ab", "c").
        digest.update(len(part).to_bytes(8, "big"))
        digest.update(part)
    return digest.hexdigest()


def _derived(secret: Secret, purpose: bytes) -> bytes:
    return HKDF(SHA256(), length=32, salt=None, info=purpose).derive(secret.reveal().encode())


def _bound(head: bytes, context: str) -> bytes:
    return head[: 1 + _KEY_ID_BYTES] + context.encode()
