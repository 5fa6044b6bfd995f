"""What comes with a request: JSON, a multipart form, or nothing.

It owns reading from the connection and the size limit of uploads. Whether the fields make sense is the
endpoint's business.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field

from aiohttp import BodyPartReader, web

from proxy.sim import body as fields
from proxy.sim.errors import ApiError
from proxy.sim.work import Takes, Upload

_CHUNK_BYTES = 1 << 16
_MAX_FIELD_BYTES = 1 << 20
MAX_BODY_BYTES = 32 << 20
"""Of a body that is no upload: Anthropic's limit for the Messages API (its page on errors), for all here."""


@dataclass(frozen=True, slots=True)
class Intake:
    """A body as it came. `digest` is the sha256 of its bytes, of a form that of its file."""

    raw: bytes = b""
    form: dict[str, object] = field(default_factory=dict)
    upload: Upload | None = None
    digest: str = ""

    def fields(self, takes: Takes) -> dict[str, object]:
        """Return the body's fields. Raises ApiError (400) for what is not a JSON object."""
        return fields.parse_body(self.raw) if takes is Takes.JSON else self.form


async def take_in(request: web.Request, takes: Takes, max_upload_bytes: int) -> Intake:
    """Read a request's body. Raises ApiError for a form that is none (400) and too large a body (413)."""
    if takes is not Takes.FORM:
        raw = await request.read()
        if len(raw) > MAX_BODY_BYTES:
            message = f"Request body of {len(raw):,} bytes exceeds the maximum of {MAX_BODY_BYTES:,} bytes."
            raise ApiError(413, message, code="request_too_large")
        return Intake(raw, digest=hashlib.sha256(raw).hexdigest())
    if request.content_type != "multipart/form-data":
        raise ApiError(400, "This endpoint takes multipart/form-data.")
    form: dict[str, object] = {}
    upload = None
    try:
        async for part in await request.multipart():
            if not isinstance(part, BodyPartReader) or part.name is None:
                raise ApiError(400, "Every part of the form needs a name.")
            limit = _MAX_FIELD_BYTES if part.filename is None else max_upload_bytes
            content = await _read_part(part, limit)
            if part.filename is not None:
                upload = Upload(part.filename, content)
            else:
                form[part.name] = content.decode("utf-8", "replace")
    except ValueError as error:
        raise ApiError(400, f"Could not parse the multipart form: {error}.") from None
    digest = hashlib.sha256(upload.content if upload else b"").hexdigest()
    return Intake(form=form, upload=upload, digest=digest)


async def _read_part(part: BodyPartReader, limit_bytes: int) -> bytes:
    content = bytearray()
    while chunk := await part.read_chunk(_CHUNK_BYTES):
        content += chunk
        if len(content) > limit_bytes:
            raise ApiError(
                413, f"Maximum content size limit ({limit_bytes:,} bytes) exceeded.", code="content_too_large"
            )
    return bytes(content)
