"""The system text of a request: its texts in the order in which they are read, and how they change places.

Owns how an arrangement of lines becomes bytes of the request again, with a mark behind what is stable or not.
"""

from __future__ import annotations

import msgspec

from proxy.core.document import Document
from proxy.dialects.conversation import Conversation, Role, conversation_fields
from proxy.dialects.dialect import Dialect
from proxy.dialects.prompt_caching import Mark, with_text_marked
from proxy.dialects.text_holders import Holder, can_go, with_holders
from proxy.dialects.text_parts import TextPart
from proxy.steps.align_prefix.arrangement import Arrangement, SystemText

# OpenAI's top-level instructions are plain text and carry no mark.
_UNMARKABLE = "instructions"


class _Place(msgspec.Struct, frozen=True):
    """Where one of the texts stands: in which holder, as which of its texts."""

    holder: int
    number: int
    part: TextPart


class System(msgspec.Struct, frozen=True):
    """The system text before the conversation."""

    holders: tuple[Holder, ...]
    places: tuple[_Place, ...]
    texts: tuple[SystemText, ...]

    def is_markable(self, arrangement: Arrangement) -> bool:
        """Tell whether a mark can stand behind what is stable."""
        if arrangement.last < 0 or not arrangement.is_aligned:
            return False
        return self.holders[self.places[arrangement.last].holder].field != _UNMARKABLE

    def arranged(self, document: Document, arrangement: Arrangement, mark: Mark | None) -> Document:
        """Return the document with the texts in their new order; with `mark` the stable end is marked."""
        edits: dict[tuple[str, int | None], bytes | None] = {}
        for number, holder in enumerate(self.holders):
            mine = {place: at for place, at in enumerate(self.places) if at.holder == number}
            changed = {
                at.part: arrangement.texts[place] for place, at in mine.items() if place in arrangement.texts
            }
            marked_at = arrangement.last if mark is not None and arrangement.last in mine else None
            if not changed and marked_at is None:
                continue
            gone = [part for part, text in changed.items() if text is None]
            if gone and len(gone) == len(mine) and holder.index is not None:
                edits[holder.field, holder.index] = None
                continue
            texts = {part: text for part, text in changed.items() if text is not None}
            raw = holder.with_parts(texts, gone)
            if mark is not None and marked_at is not None:
                at = self.places[marked_at]
                before = sum(part.start < at.part.start for part in gone)
                part = msgspec.structs.replace(holder, raw=raw).parts()[at.number - before]
                raw = with_text_marked(raw, part, arrangement.stable_chars, mark)
            edits[holder.field, holder.index] = raw
        return with_holders(document, edits)


def read_system(document: Document, conversation: Conversation | None, dialect: Dialect) -> System:
    """Return the system text: the field that holds some of it, then the leading messages that do."""
    fields = ((name, document.get(name)) for name in conversation_fields(dialect)[1:])
    holders = [Holder(name, None, raw, is_value=True) for name, raw in fields if raw is not None]
    for index, element in enumerate(() if conversation is None else conversation.elements):
        if conversation is None or element.role is not Role.SYSTEM or element.is_summary:
            break
        holders.append(Holder(conversation.key, index, conversation.raws[index]))
    places: list[_Place] = []
    texts: list[SystemText] = []
    for number, holder in enumerate(holders):
        parts = holder.parts()
        for position, part in enumerate(parts):
            places.append(_Place(number, position, part))
            texts.append(SystemText(part.text(holder.raw), _can_go(holder, part, len(parts))))
    return System(tuple(holders), tuple(places), tuple(texts))


def _can_go(holder: Holder, part: TextPart, count: int) -> bool:
    """Tell whether nothing is missing where this text was; a message can go with its only one."""
    if not can_go(part):
        return holder.index is not None
    others = holder.list_length(part) - count
    return others > 0 or count > 1 or holder.index is not None
