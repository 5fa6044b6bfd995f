"""What an answer says about itself, noted on its exchange: usage, why it ended, whether it was empty."""

from __future__ import annotations

from proxy.core.exchange import Exchange
from proxy.dialects.dialect import Dialect
from proxy.edge.event_tap import EventTap


def note_stream(exchange: Exchange, tap: EventTap) -> None:
    """Note what a stream has said so far."""
    exchange.usage = tap.usage
    exchange.finish_reason = tap.finish_reason
    exchange.was_empty = not tap.has_content


def note_body(exchange: Exchange, dialect: Dialect | None, body: bytes) -> None:
    """Note what a complete body says."""
    if dialect is None or not body:
        return
    facts = dialect.read_body(body)
    exchange.usage = facts.usage
    exchange.finish_reason = facts.finish_reason or ""
    exchange.was_empty = facts.empty
