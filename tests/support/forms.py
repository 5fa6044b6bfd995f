"""Multipart forms as clients of `/v1/files` send them, byte for byte.

content_type, body = form(field("purpose", "batch"), file_part(b"..."))
"""

from __future__ import annotations

BOUNDARY = "----weir-test-boundary"
CONTENT_TYPE = f"multipart/form-data; boundary={BOUNDARY}"


def field(name: str, value: str, more: str = "") -> bytes:
    """Return one part with text. `more` are further header lines, each ended by CRLF."""
    return f'Content-Disposition: form-data; name="{name}"\r\n{more}\r\n{value}'.encode()


def file_part(content: bytes, filename: str | None = "in.jsonl", more: str = "") -> bytes:
    """Return the part of a file."""
    named = "" if filename is None else f'; filename="{filename}"'
    head = f'Content-Disposition: form-data; name="file"{named}\r\n{more}\r\n'
    return head.encode("utf-8") + content


def form(*parts: bytes) -> bytes:
    """Return the body that these parts make, under `CONTENT_TYPE`."""
    edge = f"--{BOUNDARY}".encode()
    return b"".join(edge + b"\r\n" + part + b"\r\n" for part in parts) + edge + b"--\r\n"


def upload_form(content: bytes, *more: bytes) -> bytes:
    """Return the form of an ordinary upload."""
    return form(field("purpose", "batch"), *more, file_part(content))
