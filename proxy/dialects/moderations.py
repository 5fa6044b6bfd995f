"""OpenAI's Moderations: nothing to rewrite, usage only from some servers."""

from __future__ import annotations

from proxy.dialects.plain import PlainDialect


class ModerationsDialect(PlainDialect):
    """`/v1/moderations`."""

    name = "moderations"
    path = "/v1/moderations"


MODERATIONS = ModerationsDialect()
