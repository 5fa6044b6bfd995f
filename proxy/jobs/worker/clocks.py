"""Whether this worker's clock may be believed: one far ahead would expire and delete everybody's jobs.

Every worker notes its time in the store every few seconds; a Redis server tells its own. A clock is
contradicted by one that is far behind it and alive: whose note has changed, or was first seen, a moment ago.
Notes that stay as they are were left by workers that are gone, so that a restart after a long stop is
believed after that moment. Pure: what is noted and when, says the caller.
"""

from __future__ import annotations

from collections.abc import Mapping

MOST_AHEAD_SECONDS = 300.0
"""How far a clock may be ahead of another: less delays work or hurries it, more would lose it."""

BEATS_OF_SILENCE = 4
"""After so many beats without a new note a worker is gone."""

_JUMP_SECONDS = 60.0


class Clocks:
    """What one worker knows about the clocks of the others. `beat_seconds`: how often each notes its time."""

    def __init__(self, beat_seconds: float) -> None:
        self._silence_seconds = BEATS_OF_SILENCE * beat_seconds
        self._seen: dict[str, tuple[float, float, bool]] = {}
        self._looked: tuple[float, float] | None = None
        self.ahead_seconds = 0.0
        self.is_contradicted = False

    def is_fresh(self, wall: float, monotonic: float) -> bool:
        """Tell whether the last look counts still: our own clock has not been set since."""
        if self._looked is None:
            return False
        passed, shown = monotonic - self._looked[1], wall - self._looked[0]
        return abs(shown - passed) < _JUMP_SECONDS

    @property
    def may_work(self) -> bool:
        """Nobody who may be alive is far behind."""
        return self.ahead_seconds == 0.0

    def look(self, beats: Mapping[str, float], wall: float, monotonic: float) -> None:
        """Take in the others' notes (seconds since the epoch, by name).

        Afterwards `ahead_seconds` is how far we are ahead of one that may be alive, 0 if that is little;
        `is_contradicted`: of one that certainly is.
        """
        self._looked = (wall, monotonic)
        self._seen = {name: self._note(name, beat, monotonic) for name, beat in beats.items()}
        alive = {
            name: (beat, moves)
            for name, (beat, since, moves) in self._seen.items()
            if monotonic - since < self._silence_seconds and wall - beat > MOST_AHEAD_SECONDS
        }
        self.ahead_seconds = max((wall - beat for beat, _ in alive.values()), default=0.0)
        self.is_contradicted = any(moves for _, moves in alive.values())

    def _note(self, name: str, beat: float, monotonic: float) -> tuple[float, float, bool]:
        known = self._seen.get(name)
        if known is None:
            return beat, monotonic, False
        return known if known[0] == beat else (beat, monotonic, True)
