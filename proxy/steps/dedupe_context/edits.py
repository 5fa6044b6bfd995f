"""What the texts of a request lose: each holder in turn, until nothing is left to lose.

Owns the order and what "seen before" means: within one message, or across all of them.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import msgspec

from proxy.core.json_edits import Path
from proxy.dialects.text_holders import Holder, can_go, list_of
from proxy.dialects.text_parts import TextPart
from proxy.steps.dedupe_context.config import Config
from proxy.steps.dedupe_context.likeness import Seen
from proxy.steps.dedupe_context.sift import Tally, sift

# What goes may leave something behind that is a passage of another shape; few texts have two.
_MOST_ROUNDS = 4


class Edits(msgspec.Struct):
    """New bytes of holders, by number, and how many passages each lost."""

    raws: dict[int, bytes]
    tallies: dict[int, Tally]


def edited(holders: Sequence[Holder], config: Config, fixed: int, *, is_shared: bool) -> Edits:
    """Return what holders become; the first `fixed` stay as they are.

    With `is_shared` a passage that was seen in one holder is a repetition in the next; the fixed ones count
    for that, too.
    """
    edits = Edits({}, {})
    current = list(holders)
    for _ in range(_MOST_ROUNDS):
        seen = Seen(config.similarity, config.compare)
        is_reshaped = False
        for number, holder in enumerate(current):
            if not is_shared:
                seen = Seen(config.similarity, config.compare)
            raw, tally, reshaped = _sifted(holder, seen, config, is_fixed=number < fixed)
            if raw != holder.raw:
                is_reshaped |= reshaped
                current[number] = msgspec.structs.replace(holder, raw=raw)
                edits.raws[number] = raw
                edits.tallies.setdefault(number, Tally()).add(tally)
        if not is_reshaped:
            break
    return edits


def _sifted(holder: Holder, seen: Seen, config: Config, *, is_fixed: bool) -> tuple[bytes, Tally, bool]:
    """Return a holder's bytes without what goes, what that was, and whether what is left reads otherwise."""
    parts = holder.parts()
    edits: dict[TextPart, str] = {}
    gone: dict[TextPart, Tally] = {}
    tally = Tally()
    is_reshaped = False
    whole: set[str] = set()
    for place, part in enumerate(parts):
        text = part.text(holder.raw)
        sifted = sift(text, seen, config, is_fixed=is_fixed)
        if not sifted.has_passages:
            # The last text of a message is what it is about.
            if not is_fixed and place + 1 < len(parts) and _repeats(part, text, whole, config):
                gone[part] = Tally(duplicates=1)
        elif sifted.text.strip() and sifted.text != text:
            edits[part] = sifted.text
            tally.add(sifted.tally)
            is_reshaped |= sifted.is_reshaped
        elif sifted.text != text and can_go(part):
            gone[part] = sifted.tally
    for part in _of_emptied_lists(holder, gone):
        del gone[part]
    for lost in gone.values():
        tally.add(lost)
    return holder.with_parts(edits, gone), tally, is_reshaped


def _repeats(part: TextPart, text: str, whole: set[str], config: Config) -> bool:
    """Tell whether a part of a message is word for word one that stands before it."""
    text = text.strip()
    if part.result is not None or not can_go(part) or len(text) < config.min_chars:
        return False
    if text in whole:
        return True
    whole.add(text)
    return False


def _of_emptied_lists(holder: Holder, gone: Collection[TextPart]) -> list[TextPart]:
    """Return the parts that have to stay, because nothing would be left beside them."""
    by_list: dict[Path, list[TextPart]] = {}
    for part in gone:
        by_list.setdefault(list_of(part), []).append(part)
    lists = holder.lists(by_list)
    return [
        part for path, parts in by_list.items() if len(parts) == len(lists.get(path, ())) for part in parts
    ]
