"""What a provider says a request consumed."""

from __future__ import annotations

import msgspec


class Usage(msgspec.Struct, frozen=True):
    """Token counts as the provider reported them; `None` where it said nothing.

    `input_tokens` is the whole prompt, cached part included, whatever the dialect's own convention is.
    """

    input_tokens: int | None = None
    output_tokens: int | None = None
    cached_tokens: int | None = None
    cache_write_tokens: int | None = None
    reasoning_tokens: int | None = None
