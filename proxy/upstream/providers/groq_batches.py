"""Groq's batches: OpenAI's shape, with a window that one chooses between a day and a week.

Owns the choice of the window (the shortest that all jobs of the batch can wait for, so that nothing expires
that still has time) and the size of a file. Source: `groq` 1.7.0 types/batch_create_params.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil
from typing import Any

from proxy.upstream.providers.batch_api import ApiLimits, BatchInput
from proxy.upstream.providers.client import Fields, ProviderClient
from proxy.upstream.providers.openai_batches import OpenAiBatches

LIMITS = ApiLimits(jobs=50_000, bytes=100_000_000)
"""100 MB by the SDK's text; the number of lines is not said there and taken from OpenAI."""

_DAY_SECONDS = 86_400
_MOST_DAYS = 7


class GroqBatches(OpenAiBatches):
    """`BatchApi` over Groq."""

    def __init__(self, client: ProviderClient, credential: Fields = (), limits: ApiLimits = LIMITS) -> None:
        super().__init__(client, credential, limits)

    def wanted(self, batch: BatchInput, file_id: str | None) -> Mapping[str, Any]:
        """Return the body of a creation, with the window that suits the jobs."""
        days = min(_MOST_DAYS, max(1, ceil(batch.wait_seconds / _DAY_SECONDS)))
        window = f"{_MOST_DAYS}d" if days == _MOST_DAYS else f"{24 * days}h"
        return {**super().wanted(batch, file_id), "completion_window": window}
