"""Capacity of the flex tier: whether there is any for one more request.

It owns the count and the refusal, which is not billed. (OpenAI answers 429 `resource_unavailable`; Groq 498
`capacity_exceeded`. See https://developers.openai.com/api/docs/guides/flex-processing.)
"""

from __future__ import annotations

from proxy.sim.deferred.rules import FlexRules
from proxy.sim.errors import failure
from proxy.sim.scenario import Faults
from proxy.sim.text import seeded


class FlexCapacity:
    """The flex requests of one provider, counted as they come."""

    def __init__(self, rules: FlexRules, seed: int) -> None:
        self._rules = rules
        self._seed = seed
        self.asked = 0
        self.missed = 0

    def check(self, faults: Faults) -> None:
        """Raise ApiError where there is no capacity for the next request."""
        self.asked += 1
        if not (self._misses() if faults.flex_miss is None else faults.flex_miss):
            return
        self.missed += 1
        if self._rules.miss_status == 429:
            raise failure(429, "resource_unavailable")
        raise failure(self._rules.miss_status)

    def _misses(self) -> bool:
        every = self._rules.miss_every
        if every and self.asked % every == 0:
            return True
        return seeded("flex", str(self._seed), str(self.asked)).random() < self._rules.miss_share
