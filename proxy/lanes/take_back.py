"""What is sent in place of a rewritten body that its upstream refused, and what is learnt from that.

Owns the order: without the parameter that the refusal names, then as the caller wrote it, then the refusal is
the answer. Nothing is learnt or counted before the upstream has taken what was sent instead: a caller can
make a refusal quote any text, and its own mistake stays one whatever is taken back.
"""

from __future__ import annotations

from proxy.core.exchange import Exchange
from proxy.lanes.lane import Rewrite
from proxy.upstream.refusals import Refusals, is_unsupported, refused_param

REFUSED = frozenset({400, 422})
"""Statuses that say that a body will not do: OpenAI's, and what servers on FastAPI and Mistral answer."""

ORIGINAL = "original"
"""Stands for everything that a policy changed, where parameters are named that were taken back."""

_MOST_REMOVED = 2
_SUCCESS = 400


class TakeBack:
    """The rewrite of one request, while it may have to be taken back."""

    __slots__ = ("_exchange", "_is_original", "_refusals", "_removed", "_rewrite", "_suspects", "_upstream")

    def __init__(self, rewrite: Rewrite, upstream: str, refusals: Refusals, exchange: Exchange) -> None:
        self._rewrite = rewrite
        self._upstream = upstream
        self._refusals = refusals
        self._exchange = exchange
        self._removed: tuple[str, ...] = ()
        self._suspects: list[str] = []
        self._is_original = False

    @property
    def is_over(self) -> bool:
        """Whether nothing is left to take back."""
        return self._is_original

    def next_body(self, refusal: bytes, coding: bytes = b"") -> bytes | None:
        """Return what to send after a refusal with that body; `None` when the refusal is the answer."""
        rewrite = self._rewrite
        if self._is_original:
            return None
        open_names = rewrite.added.difference(self._removed)
        param = refused_param(refusal, open_names, rewrite.inner, coding)
        if param is not None and is_unsupported(refusal, coding):
            self._suspects.append(param)
        if param is not None and param in open_names and len(self._removed) < _MOST_REMOVED:
            self._removed = (*self._removed, param)
            self._exchange.steps = tuple(step.without(param) for step in self._exchange.steps)
            return rewrite.without(self._removed)
        if rewrite.original is None:
            return None
        self._take_all_back()
        return rewrite.original

    def answered(self, status: int) -> None:
        """Note how the upstream answered what was sent instead."""
        if status in REFUSED:
            return
        self._exchange.taken_back = (*self._removed, ORIGINAL) if self._is_original else self._removed
        if status < _SUCCESS:
            for param in self._suspects:
                self._refusals.learn(self._upstream, self._rewrite.model, param)

    def _take_all_back(self) -> None:
        self._is_original = True
        exchange = self._exchange
        exchange.steps = tuple(step.taken_back() for step in exchange.steps)
        exchange.model = self._rewrite.given_model
        exchange.tokens_before = exchange.tokens_after = None
