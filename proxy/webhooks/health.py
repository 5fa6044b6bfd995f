"""Whether an address is worth calling. Pure; times are seconds from one and the same arbitrary start.

    enabled    every notice that is due is sent
    disabled   after `FAILURES` failed calls in a row over at least `FAILING_SECONDS`, or after one 410: one
               call an hour finds out whether it is back

Owns the rule. Each process learns for itself, and after a restart anew.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

FAILURES = 10
FAILING_SECONDS = 3_600.0
PROBE_SECONDS = 3_600.0


@dataclass(frozen=True, slots=True)
class Health:
    """What is known about one address.

    failures       in a row
    failing_since  when the first of them was
    probe_at       when a disabled address is called next, `None`: it is enabled
    """

    failures: int = 0
    failing_since: float = 0.0
    probe_at: float | None = None

    @property
    def is_disabled(self) -> bool:
        """Whether it is called once an hour only."""
        return self.probe_at is not None

    def wait_seconds(self, now: float) -> float:
        """Return how long not to call it."""
        return 0.0 if self.probe_at is None else max(0.0, self.probe_at - now)

    def probing(self, now: float) -> Health:
        """Return what is known once it is being called: nobody else calls a disabled one for an hour."""
        return self if self.probe_at is None else replace(self, probe_at=now + PROBE_SECONDS)

    def failed(self, now: float, *, is_gone: bool) -> Health:
        """Return what is known after a failure; `is_gone`: it answered 410."""
        failures = self.failures + 1
        since = self.failing_since if self.failures else now
        is_over = is_gone or (failures >= FAILURES and now - since >= FAILING_SECONDS)
        if is_over or self.is_disabled:
            return Health(failures, since, now + PROBE_SECONDS)
        return Health(failures, since)
