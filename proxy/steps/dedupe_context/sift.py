"""What one text loses: repetitions first of all, then passages that scored too low or are not among the best.

Owns the choice and the cuts. A passage that is known from elsewhere goes only if all of it is found there;
what follows the last passage of a text stays whatever happens to that passage.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from proxy.steps.dedupe_context.config import Config
from proxy.steps.dedupe_context.json_lists import json_lists, without_elements
from proxy.steps.dedupe_context.likeness import Passage, Seen
from proxy.steps.dedupe_context.passages import Found, Layout, read_passages

_SPACE = " \t\r\n"
Cut = tuple[int, int, str]


class Tally(msgspec.Struct):
    """How many passages went, by why."""

    duplicates: int = 0
    low_scores: int = 0
    beyond_top_k: int = 0

    def add(self, other: Tally) -> None:
        """Add the figures of another text."""
        self.duplicates += other.duplicates
        self.low_scores += other.low_scores
        self.beyond_top_k += other.beyond_top_k


class Sifted(msgspec.Struct, frozen=True):
    """A text without what went.

    has_passages  whether there was anything to judge
    is_reshaped   what is left reads otherwise: it has no passage of that shape any more, or another last one
    """

    text: str
    tally: Tally
    has_passages: bool
    is_reshaped: bool = False


class _Candidate(msgspec.Struct, frozen=True):
    """A passage of one list, as the rules about lists see it. One that `stays` only counts as seen."""

    passage: Passage
    score: float | None
    stays: bool = False


def sift(text: str, seen: Seen, config: Config, *, is_fixed: bool = False) -> Sifted:
    """Return what is left of a text; all of it where it `is_fixed`, but its passages count as seen."""
    tally = Tally()
    cuts: list[Cut] = []
    judged = kept = 0
    for found in json_lists(text):
        candidates = [_Candidate(each.passage, each.score, is_fixed) for each in found.elements]
        gone = _gone(candidates, seen, config, tally)
        judged += len(candidates)
        kept += len(candidates) - len(gone)
        if gone:
            dropped = [found.elements[place].index for place in gone]
            cuts.append((found.start, found.end, without_elements(text, found, dropped)))
    if not judged:
        layout = read_passages(text, config)
        judged = len(layout.found)
        ranges = _ranges(text, layout, seen, config, tally, is_fixed=is_fixed) if judged else {}
        left = [found for place, found in enumerate(layout.found) if place not in ranges]
        # The last one that is left may now be read as beginning with another.
        kept = len(left) if _end_of_repetition(text, left, config) is None else 0
        cuts = [_widened(text, *ranges[place]) for place in sorted(ranges)]
    return Sifted(_without(text, cuts) if cuts else text, tally, judged > 0, bool(cuts) and not kept)


def _ranges(
    text: str, layout: Layout, seen: Seen, config: Config, tally: Tally, *, is_fixed: bool
) -> dict[int, tuple[int, int]]:
    """Return which passages go, by place, and from where to where."""
    found = layout.found
    is_open = found[-1].is_open and not is_fixed
    repeated = _end_of_repetition(text, found, config) if is_open else None
    closed = found[:-1] if repeated is not None else found
    of_preamble = set() if is_fixed else _in_preamble(text, layout, closed, config)
    others = [place for place in range(len(closed)) if place not in of_preamble]
    candidates = [
        _Candidate(found[place].passage, found[place].score, is_fixed or found[place].is_open)
        for place in others
    ]
    gone = of_preamble.union(others[index] for index in _gone(candidates, seen, config, tally))
    ranges = {place: (found[place].start, found[place].end) for place in gone}
    tally.duplicates += len(of_preamble)
    if repeated is not None:
        tally.duplicates += 1
        ranges[len(closed)] = (found[-1].start, repeated)
    return ranges


def _gone(candidates: Sequence[_Candidate], seen: Seen, config: Config, tally: Tally) -> list[int]:
    """Return which passages of one list go; those that stay are seen from now on."""
    gone: list[int] = []
    best: dict[int, tuple[float, int]] = {}
    mine: dict[int, int] = {}
    for place, candidate in enumerate(candidates):
        score = candidate.score
        if not candidate.stays and _is_below(score, config.min_score):
            tally.low_scores += 1
            gone.append(place)
            continue
        number = None
        if len(candidate.passage.text) >= config.min_chars:
            number, is_new = seen.find_or_add(candidate.passage)
            if is_new:
                mine[number] = place
            elif not candidate.stays:
                tally.duplicates += 1
                gone.append(place)
                if number in mine and score is not None:
                    _raise(best, mine[number], score)
                continue
        if score is not None and not candidate.stays:
            best[place] = (score, place)
    beyond = _beyond_the_best(best, config.top_k)
    tally.beyond_top_k += len(beyond)
    seen.forget([number for number, place in mine.items() if place in beyond])
    return sorted([*gone, *beyond])


def _is_below(score: float | None, least: float | None) -> bool:
    return score is not None and least is not None and score < least


def _raise(best: dict[int, tuple[float, int]], place: int, score: float) -> None:
    """Let a passage count by the best score of its copies."""
    known = best.get(place)
    if known is not None and score > known[0]:
        best[place] = (score, place)


def _beyond_the_best(best: dict[int, tuple[float, int]], top_k: int | None) -> set[int]:
    if top_k is None or len(best) <= top_k:
        return set()
    ranked = sorted(best, key=lambda place: (-best[place][0], place))
    return set(ranked[top_k:])


def _end_of_repetition(text: str, found: Sequence[Found], config: Config) -> int | None:
    """Return where the last passage's words end, if they are those of an earlier one in this text.

    Nothing marks that end: what follows may be the question. Only equal words can tell.
    """
    if not found or found[-1].score is not None:
        return None
    last = found[-1]
    longest = 0
    for earlier in found[:-1]:
        length = earlier.end - earlier.body
        # One with a score may go for that, and then the last one has to stay.
        if length <= longest or length < config.min_chars or earlier.score is not None:
            continue
        if text.startswith(text[earlier.body : earlier.end], last.body) and _ends_at(
            text, last.body + length
        ):
            longest = length
    return last.body + longest if longest else None


def _in_preamble(text: str, layout: Layout, found: Sequence[Found], config: Config) -> set[int]:
    """Return the passages that repeat the end of what stands before the first separator."""
    preamble = text[: layout.preamble].rstrip(_SPACE)
    gone: set[int] = set()
    for place, each in enumerate(found):
        words = text[each.body : each.end]
        if not each.is_open and config.min_chars <= len(words) <= len(preamble) and preamble.endswith(words):
            before = len(preamble) - len(words)
            if before == 0 or preamble[before - 1] == "\n":
                gone.add(place)
    return gone


def _ends_at(text: str, position: int) -> bool:
    """Tell whether a paragraph ends here: a line that follows may as well belong to the passage."""
    line_end = text.find("\n", position)
    if line_end < 0:
        return not text[position:].strip()
    next_end = text.find("\n", line_end + 1)
    rest = text[line_end : len(text) if next_end < 0 else next_end]
    return not text[position:line_end].strip() and not rest.strip()


def _widened(text: str, start: int, end: int) -> Cut:
    """Return a cut with the space that parts the passage from what stands before it."""
    while start > 0 and text[start - 1] in _SPACE:
        start -= 1
    if start == 0:
        while end < len(text) and text[end] in _SPACE:
            end += 1
    return start, end, ""


def _without(text: str, cuts: Iterable[Cut]) -> str:
    pieces: list[str] = []
    position = 0
    for start, end, instead in cuts:
        pieces += (text[position:start], instead)
        position = max(position, end)
    pieces.append(text[position:])
    return "".join(pieces)
