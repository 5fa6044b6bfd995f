"""How a stored body is sent by each tier. Pure.

Owns the fields that belong to a tier; everything else stays as the caller wrote it. Sources: OpenAI's guides
on flex processing and background mode; `openai` 3.57 types/responses/response_create_params.py.
"""

from __future__ import annotations

from proxy.core.document import Document, DocumentError
from proxy.jobs.model import JobTier
from proxy.jobs.packing import STREAM_FIELDS

TIER_FIELDS = ("service_tier", "background", "background_options")
"""Fields by which a caller asks for a tier. Weir chooses it instead."""

STORED_WITHOUT = STREAM_FIELDS + TIER_FIELDS
"""What `packing.clean_body` takes out of a body before it is stored: the rest suits every tier."""

_WINDOWS = {JobTier.BACKGROUND_2H: b'"2h"', JobTier.BACKGROUND_8H: b'"8h"'}


def body_for(tier: JobTier, body: bytes) -> bytes:
    """Return a stored body as it is sent by a tier."""
    try:
        document = Document.parse(body)
    except DocumentError:
        return body  # it was read when it was stored; the provider says what is wrong with it
    for name in TIER_FIELDS:
        document = document.delete(name)
    match tier:
        case JobTier.FLEX:
            document = document.set("service_tier", b'"flex"')
        case JobTier.BACKGROUND_2H | JobTier.BACKGROUND_8H:
            options = b'{"completion_window":%b}' % _WINDOWS[tier]
            document = document.set("background", b"true").set("background_options", options)
        case JobTier.DIRECT | JobTier.BATCH:
            pass
    return document.to_bytes()
