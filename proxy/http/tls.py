"""TLS contexts for both ends. Certificates are files; verification is on unless a policy turns it off."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import blake2b

_DIGEST_BYTES = 16


def server_context(certificate: str, key: str, client_ca: str | None = None) -> ssl.SSLContext:
    """Return the context of a listener; with `client_ca` callers must show a certificate that it signed.

    Raises OSError that names a file which cannot be used.
    """
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    with _naming(certificate):
        context.load_cert_chain(certificate, key)
    context.set_alpn_protocols(["http/1.1"])
    if client_ca is not None:
        with _naming(client_ca):
            context.load_verify_locations(client_ca)
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def client_context(
    ca: str | None = None,
    certificate: str | None = None,
    key: str | None = None,
    verify: bool = True,
) -> ssl.SSLContext:
    """Return the context for connections to an upstream.

    `ca` is trusted in addition to the system's store. Raises OSError that names a file which cannot be used.
    """
    context = ssl.create_default_context()
    if ca is not None:
        with _naming(ca):
            context.load_verify_locations(ca)
    if certificate is not None:
        with _naming(certificate):
            context.load_cert_chain(certificate, key)
    if not verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    context.set_alpn_protocols(["http/1.1"])
    return context


def shown_certificate(transport: asyncio.BaseTransport) -> bytes:
    """Return a digest of the certificate that the peer has shown, empty where it showed none."""
    encrypted = transport.get_extra_info("ssl_object")
    certificate = None if encrypted is None else encrypted.getpeercert(binary_form=True)
    return b"" if certificate is None else blake2b(certificate, digest_size=_DIGEST_BYTES).digest()


@contextmanager
def _naming(path: str) -> Iterator[None]:
    """Say which file it was: OpenSSL's errors do not."""
    try:
        yield
    except OSError as problem:  # ssl.SSLError is one, too
        reason = getattr(problem, "reason", None) or problem.strerror or "cannot be read"
        raise OSError(f"certificate file {path} or its key: {reason}") from None
