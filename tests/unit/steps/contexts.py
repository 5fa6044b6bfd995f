"""Contexts and documents for trying steps."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from proxy.core.document import Document
from proxy.dialects import Dialect
from proxy.dialects.chat import CHAT
from proxy.steps.step import StepContext


@dataclass(frozen=True, slots=True)
class Figure:
    """A token count."""

    tokens: int
    exact: bool = False


class BytesAsTokens:
    """Counts four bytes as a token."""

    def count_text(self, text: str, model: str) -> Figure:
        return Figure(len(text.encode("utf-8", "replace")) // 4)

    def count_message(self, raw: bytes, model: str) -> Figure:
        return Figure(len(raw) // 4)


def context(
    dialect: Dialect = CHAT,
    model: str = "gpt-4o",
    provider: str = "openai",
    refused: frozenset[str] = frozenset(),
) -> StepContext:
    """Return what a step may know."""
    return StepContext(dialect, model, provider, BytesAsTokens(), refused)


def body(**fields: Any) -> Document:
    """Return a document in Python's spacing."""
    return Document.parse(json.dumps(fields).encode())
