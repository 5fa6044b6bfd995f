"""A certificate authority of the test's own, and what it signs: servers on loopback and clients."""

from __future__ import annotations

import datetime
import ipaddress
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

_VALID = datetime.timedelta(days=1)


@dataclass(frozen=True, slots=True)
class Identity:
    """PEM files: a certificate, its key, and one that holds both."""

    certificate: Path
    key: Path
    both: Path


class Authority:
    """Signs certificates; `certificate` is the file to trust."""

    def __init__(self, folder: Path, name: str = "test authority") -> None:
        self._folder = folder
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        self._key = ec.generate_private_key(ec.SECP256R1())
        signed = self._signed(name, self._key, x509.BasicConstraints(ca=True, path_length=0))
        self.certificate = folder / f"{name.replace(' ', '-')}.pem"
        self.certificate.write_bytes(signed.public_bytes(serialization.Encoding.PEM))

    def server(self, name: str = "server") -> Identity:
        """Sign a certificate for `localhost` and the loopback addresses."""
        names = [
            x509.DNSName("localhost"),
            x509.IPAddress(ipaddress.ip_address("127.0.0.1")),
            x509.IPAddress(ipaddress.ip_address("::1")),
        ]
        return self._issue(name, ExtendedKeyUsageOID.SERVER_AUTH, x509.SubjectAlternativeName(names))

    def client(self, name: str = "client") -> Identity:
        """Sign a certificate that a caller shows."""
        return self._issue(name, ExtendedKeyUsageOID.CLIENT_AUTH)

    def _issue(self, name: str, usage: x509.ObjectIdentifier, *extensions: x509.ExtensionType) -> Identity:
        key = ec.generate_private_key(ec.SECP256R1())
        constraints = x509.BasicConstraints(ca=False, path_length=None)
        signed = self._signed(name, key, constraints, x509.ExtendedKeyUsage([usage]), *extensions)
        certificate_pem = signed.public_bytes(serialization.Encoding.PEM)
        key_pem = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        files = Identity(*(self._folder / f"{name}-{kind}.pem" for kind in ("certificate", "key", "both")))
        files.certificate.write_bytes(certificate_pem)
        files.key.write_bytes(key_pem)
        files.both.write_bytes(certificate_pem + key_pem)
        return files

    def _signed(
        self, name: str, key: ec.EllipticCurvePrivateKey, *extensions: x509.ExtensionType
    ) -> x509.Certificate:
        now = datetime.datetime.now(datetime.UTC)
        builder = (
            x509.CertificateBuilder()
            .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]))
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - _VALID)
            .not_valid_after(now + _VALID)
        )
        for extension in extensions:
            builder = builder.add_extension(extension, critical=isinstance(extension, x509.BasicConstraints))
        identifier = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
        authority = x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key())
        builder = builder.add_extension(identifier, critical=False).add_extension(authority, critical=False)
        return builder.sign(self._key, hashes.SHA256())
