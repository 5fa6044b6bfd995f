"""An API whose shape is not known: nothing is added there, but what a limit names is limited all the same."""

from __future__ import annotations

from proxy.core.document import Document
from proxy.dialects.plain import PlainDialect


class UnknownDialect(PlainDialect):
    """Any other path. Its cap fields are those that any API uses."""

    name = "unknown"
    path = ""
    cap_field_names: tuple[str, ...] = ("max_tokens", "max_completion_tokens", "max_output_tokens")
    caps = frozenset(cap_field_names)

    def cap_field(self, document: Document, model: str, provider: str) -> str | None:
        """Return the caller's own field; where a cap belongs otherwise nobody knows."""
        return self.own_cap_field(document)


UNKNOWN = UnknownDialect()
