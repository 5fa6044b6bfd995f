"""What one text loses: repetitions first of all, then passages that scored too low or are not among the best.

Owns the choice and the cuts. A passage that is known from elsewhere goes only if all of it is found there;
what follows the last passage of a text stays whatever happens to that passage.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence
from itertools import islice

import msgspec

from proxy.steps.dedupe_context.config import Config
from proxy.steps.dedupe_context.json_lists import json_lists, without_elements
from proxy.steps.dedupe_context.likeness import Passage, Seen
from proxy.steps.dedupe_context.passages import Found, Layout, read_passages

_SPACE = " \t\r\n"
_BLANK_LINE = re.compile(r"\n[ \t\r]*+\n")
_MOST_PARAGRAPHS = 8
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
        kept = 0 if _has_other_end(text, layout, ranges) else judged - len(ranges)
        cuts = [_widened(text, *ranges[place]) for place in sorted(ranges)]
    return Sifted(_without(text, cuts) if cuts else text, tally, judged > 0, bool(cuts) and not kept)


def _ranges(
    text: str, layout: Layout, seen: Seen, config: Config, tally: Tally, *, is_fixed: bool
) -> dict[int, tuple[int, int]]:
    """Return which passages go, by place, and from where to where."""
    found = layout.found
    of_preamble = set() if is_fixed else _in_preamble(text, layout, config)
    tally.duplicates += len(of_preamble)
    others = [place for place in range(len(found)) if place not in of_preamble and not found[place].is_open]
    candidates = [_Candidate(found[place].passage, found[place].score, is_fixed) for place in others]
    gone = of_preamble.union(others[index] for index in _gone(candidates, seen, config, tally))
    ranges = {place: (found[place].start, found[place].end) for place in gone}
    last = found[-1]
    if not last.is_open:
        return ranges
    end = None if is_fixed else _end_of_repetition(text, found, seen, config)
    if end is not None:
        tally.duplicates += 1
        ranges[len(found) - 1] = (last.start, end)
    else:
        _note_first_paragraph(text, last, seen, config)
    return ranges


def _has_other_end(text: str, layout: Layout, gone: Collection[int]) -> bool:
    """Tell whether another passage, of several paragraphs, is the last one now."""
    last = len(layout.found) - 1
    if last not in gone or not layout.found[last].is_open:
        return False
    left = [found for place, found in enumerate(layout.found) if place not in gone]
    return bool(left) and _BLANK_LINE.search(text, left[-1].body, left[-1].end) is not None


def _note_first_paragraph(text: str, last: Found, seen: Seen, config: Config) -> None:
    """Let later texts know what is a passage for certain: in the last paragraph may be a question."""
    match = _BLANK_LINE.search(text, last.body, last.end)
    if match is not None and match.start() - last.body >= config.min_chars:
        words = text[last.body : match.start()].rstrip()
        seen.find_or_add(msgspec.structs.replace(last.passage, text=words))


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


def _end_of_repetition(text: str, found: Sequence[Found], seen: Seen, config: Config) -> int | None:
    """Return where the last passage's words end, if these are a passage that was seen.

    Nothing marks that end: what follows may be the question. So the words have to be equal, and a blank line
    has to part them from what follows. One with a score stays, because the other may have gone for its own.
    """
    last = found[-1]
    if last.score is not None:
        return None
    ends = [
        match.start() for match in islice(_BLANK_LINE.finditer(text, last.body, last.end), _MOST_PARAGRAPHS)
    ]
    ends += [last.end] if len(ends) < _MOST_PARAGRAPHS else []
    for end in reversed(ends):
        words = text[last.body : end].rstrip()
        if len(words) >= config.min_chars and seen.knows(msgspec.structs.replace(last.passage, text=words)):
            return last.body + len(words)
    return None


def _in_preamble(text: str, layout: Layout, config: Config) -> set[int]:
    """Return the passages that repeat the end of what stands before the first separator."""
    preamble = text[: layout.preamble].rstrip(_SPACE)
    gone: set[int] = set()
    for place, each in enumerate(layout.found):
        words = text[each.body : each.end]
        if not each.is_open and config.min_chars <= len(words) <= len(preamble) and preamble.endswith(words):
            before = len(preamble) - len(words)
            if before == 0 or preamble[before - 1] == "\n":
                gone.add(place)
    return gone


def _widened(text: str, start: int, end: int) -> Cut:
    """Return a cut with the space that parts the passage from what stands before it."""
    while start > 0 and text[start - 1] in _SPACE:
        start -= 1
    return start, end, ""


def _without(text: str, cuts: Iterable[Cut]) -> str:
    pieces: list[str] = []
    position = 0
    for start, end, instead in cuts:
        pieces += (text[position:start], instead)
        position = max(position, end)
    pieces.append(text[position:])
    left = "".join(pieces)
    # What the text began with is gone, and so is what parted it from the rest.
    return left.lstrip(_SPACE) if pieces[0] == "" else left
