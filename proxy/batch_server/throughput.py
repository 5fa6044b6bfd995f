"""Whether more lines at once still get more done. Pure.

Owns what is known of line latency by concurrency. By Little's law n lines at once that take t each are n / t
a second: where that stops growing, more at once only wait for each other inside the upstream.
"""

from __future__ import annotations

_MEAN_OF_LINES = 50
_LEAST_LINES = 8
"""Lines at a concurrency before it says anything."""

_REMEMBERED_LINES = 500
"""After so many lines all is learnt anew: the upstream, or what is asked of it, may have changed."""

_LEAST_GAIN = 0.25
"""What further lines must get done, compared with those before them."""

_MUCH_SLOWER = 1.15


class _Latency:
    """Mean seconds per unit of work, as the last lines that started at one concurrency saw it."""

    __slots__ = ("lines", "seconds")

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.lines = 1

    def add(self, seconds: float) -> None:
        self.lines += 1
        self.seconds += (seconds - self.seconds) / min(self.lines, _MEAN_OF_LINES)


class Throughput:
    """What one upstream got done. Lines whose output tokens are known are compared by the token."""

    def __init__(self) -> None:
        self._seen: dict[tuple[bool, int], _Latency] = {}
        self._lines = 0

    def add(self, concurrency: int, seconds: float, output_tokens: int | None) -> None:
        """Note a line that ran among `concurrency` lines, itself included."""
        self._lines += 1
        if self._lines > _REMEMBERED_LINES:
            self._seen.clear()
            self._lines = 0
        cost = max(1e-6, seconds / output_tokens if output_tokens else seconds)
        key = (bool(output_tokens), concurrency)
        known = self._seen.get(key)
        if known is None:
            self._seen[key] = _Latency(cost)
        else:
            known.add(cost)

    def knows(self, concurrency: int) -> bool:
        """Tell whether enough lines ran at this concurrency to say anything."""
        known = (self._seen.get((is_by_token, concurrency)) for is_by_token in (True, False))
        return any(each is not None and each.lines >= _LEAST_LINES for each in known)

    def is_futile(self, concurrency: int) -> bool:
        """Tell whether fewer lines at once got nearly as much done, each of them in less time."""
        return any(self._is_futile(is_by_token, concurrency) for is_by_token in (True, False))

    def _is_futile(self, is_by_token: bool, concurrency: int) -> bool:
        here = self._seen.get((is_by_token, concurrency))
        if here is None or here.lines < _LEAST_LINES:
            return False
        done = concurrency / here.seconds
        for (kind, fewer), there in self._seen.items():
            if kind is not is_by_token or fewer >= concurrency or there.lines < _LEAST_LINES:
                continue
            is_slower = here.seconds > there.seconds * _MUCH_SLOWER
            least_gain = 1.0 + _LEAST_GAIN * (concurrency / fewer - 1.0)
            if is_slower and done < fewer / there.seconds * least_gain:
                return True
        return False
