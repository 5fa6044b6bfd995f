"""A request between two steps, kept for whoever explains what each step did."""

from __future__ import annotations

import msgspec

from proxy.core.document import Document
from proxy.core.upstream import Upstream


class Stage(msgspec.Struct, frozen=True):
    """What would be sent, whereto, if the steps ended here."""

    document: Document
    upstream: Upstream
    model: str


class Trace(msgspec.Struct):
    """The stages of a request: as each step found it, and as the last one left it.

    Whoever asks for one explains, so that nothing is remembered as sent unless `remembers` says so.
    """

    stages: list[Stage] = []
    remembers: bool = False
