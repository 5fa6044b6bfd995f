"""Who a caller is: its credential fields, and digests by which it is known again. Pure.

    owner    whoever shows the same credentials may see the job
    account  whoever pays at the provider; jobs of two never share a batch

Cookies say who somebody is only where nothing else does: providers set some of their own, which change.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from proxy.core.upstream import Upstream
from proxy.http.head import Header
from proxy.jobs.model import HeaderFields
from proxy.jobs.sealing import fingerprint
from proxy.upstream.request_head import CREDENTIAL_HEADERS

_COOKIE = b"cookie"
_KEYS = CREDENTIAL_HEADERS - {_COOKIE, b"openai-organization", b"openai-project"}


@dataclass(frozen=True, slots=True)
class Identity:
    """What a request says about its caller. `fields` never show."""

    fields: tuple[tuple[bytes, bytes], ...]

    def __repr__(self) -> str:
        return f"Identity({len(self.fields)} fields)"

    @property
    def is_anonymous(self) -> bool:
        """It shows no credentials at all."""
        return not self.fields

    @property
    def credential(self) -> HeaderFields:
        """The header fields that the provider needs to know who pays."""
        return tuple((name.decode("latin-1"), value.decode("latin-1")) for name, value in self.fields)

    def owner(self, salt: bytes) -> str:
        """Return the digest that its jobs are kept under."""
        return fingerprint(salt, b"owner", *_flat(self.fields))

    def account(self, salt: bytes, upstream: Upstream) -> str:
        """Return the digest of who pays: the upstream's own key, else the caller's."""
        if upstream.api_key is not None:
            return fingerprint(salt, b"account", upstream.name.encode(), upstream.api_key.reveal().encode())
        return fingerprint(salt, b"account", upstream.name.encode(), *_flat(self.fields))


def has_credentials(names: Iterable[str]) -> bool:
    """Tell whether any of these header names (lower case) is that of a credential that would be passed on."""
    return any(name.encode("latin-1") in CREDENTIAL_HEADERS for name in names)


def identity_of(headers: Iterable[Header]) -> Identity:
    """Return who a request's caller is. The order of its fields does not matter."""
    found = [(lower, value) for lower, _, value in headers if lower in CREDENTIAL_HEADERS]
    if any(name in _KEYS for name, _ in found):
        found = [field for field in found if field[0] != _COOKIE]
    return Identity(tuple(sorted(found)))


def _flat(fields: Iterable[tuple[bytes, bytes]]) -> list[bytes]:
    return [part for field in fields for part in field]
