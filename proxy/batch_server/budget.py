"""Which share of the interactive requests at an upstream may meet lines that may harm them. Pure.

An account: each interactive request pays in a share of one, each that meets such lines costs what harm is to
be reckoned with, one at most. Lines that may do harm begin only where the account bears it, so that whatever
they do shows in few answers. A request is counted once, however many lines it meets. What is to be learnt
from some requests is advanced at once.
"""

from __future__ import annotations

_MOST_SAVED = 1.0
_MOST_DEBT = 3.0
"""Lines that were begun in silence may be met by many requests at once: rarely, so that this is forgotten."""

_MOST_EXPECTED = 100.0
"""Work goes on, however long lines take and however many requests come meanwhile."""


class Budget:
    """The account of one upstream. `share`: of the interactive requests, above 0, at most 1."""

    def __init__(self, share: float) -> None:
        self.share = share
        self._credit = _MOST_SAVED
        self._untouched = 0
        self._expected = 0.0
        self._epoch = 0

    @property
    def is_in_debt(self) -> bool:
        """Whether more requests have met lines than was their share."""
        return self._credit < 0

    def expect(self, requests: float) -> None:
        """Note how many requests come while a line runs. Of more than a hundred the rest is not paid for."""
        self._expected = min(_MOST_EXPECTED, requests)

    def bears(self, price: float) -> bool:
        """Tell whether all in flight may meet lines at this price, and those that come while these run.

        One that comes, and pays in, has to be reckoned with at least.
        """
        paid_in = self.share * max(1.0, self._expected)
        return self._credit + paid_in >= price * max(1.0, self._untouched + self._expected)

    @property
    def untouched(self) -> int:
        """Return how many requests in flight have met no such line."""
        return self._untouched

    def began(self, price: float) -> int | None:
        """Note an interactive request; return what `ended` wants to know of it.

        `price` is that of lines that may do harm and are in flight, 0 where there are none.
        """
        saved = max(_MOST_SAVED, self._untouched + 1.0 + self._expected)
        self._credit = max(self._credit, min(saved, self._credit + self.share))
        if price:
            self._spend(price)
            return None
        self._untouched += 1
        return self._epoch

    def ended(self, token: int | None) -> bool:
        """Note the end of the request; tell whether it met no such line."""
        is_untouched = token == self._epoch
        self._untouched -= is_untouched
        return is_untouched

    def advance(self, requests: int) -> None:
        """Let so many requests more meet such lines, once."""
        self._credit += requests

    def met(self, price: float) -> None:
        """Note that all requests in flight meet lines that may do harm."""
        self._spend(price * self._untouched)
        self._untouched = 0
        self._epoch += 1

    def _spend(self, price: float) -> None:
        self._credit = max(-_MOST_DEBT - self._expected, self._credit - price)
