"""The in-memory twin of `TokenCounter`: four characters are one token, always.

Owns predictable figures for tests of whatever needs a counter. Refuses vocabularies and caching; framing
and media cost what they cost in the real counter, so that only the text rule differs.
"""

from __future__ import annotations

from collections.abc import Iterable

from proxy.tokens.bounds import upper_bound_bytes
from proxy.tokens.counter import decode_json
from proxy.tokens.messages import measure_message
from proxy.tokens.models import profile_for
from proxy.tokens.port import Count
from proxy.tokens.tools import measure_tools


class FixedCounter:
    """Counts `len(text) // 4` for every model; see `port.Counter` for the contract."""

    upper_bound_bytes = staticmethod(upper_bound_bytes)
    fallbacks = 0

    def prepare(self) -> None:
        """Nothing is needed."""

    def count_text(self, text: str, model: str) -> Count:
        """Count plain text; `model` makes no difference."""
        return Count(len(text) // 4, False)

    def count_message(self, raw: bytes, model: str) -> Count:
        """Count one message with the real framing and media rules of `model`."""
        try:
            return measure_message(
                decode_json(raw), profile_for(model), lambda text: self.count_text(text, model)
            )
        except (ValueError, RecursionError):
            return Count(len(raw) // 4, False)

    def count_tools(self, raw: bytes, model: str) -> Count:
        """Count a `tools` array with the real rendering."""
        try:
            return measure_tools(decode_json(raw), lambda text: self.count_text(text, model))
        except (ValueError, RecursionError):
            return Count(len(raw) // 4, False)

    def uncached_bytes(self, raws: Iterable[bytes], model: str) -> int:
        """Return 0: counting here costs nothing worth moving to a thread."""
        return 0
