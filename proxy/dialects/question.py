"""What a person asked last: its text, everything that leads up to it, and which media the request shows.

While an agent works on a question its requests grow by tool calls and results, but the question stays what it
was. Whoever decides by this decides alike for all of them. Nothing is decided here.
"""

from __future__ import annotations

import msgspec

from proxy.core.document import Document
from proxy.core.json_values import decode
from proxy.dialects.chat_elements import read_chat_element
from proxy.dialects.marking import with_plain_letters
from proxy.dialects.messages_elements import read_messages_element
from proxy.dialects.responses_elements import read_responses_element

TURN_FIELDS = {"chat": "messages", "completions": "prompt", "messages": "messages", "responses": "input"}
"""Where each dialect, by name, keeps its turns (or the text that stands for them)."""

_READERS = {
    "chat": read_chat_element,
    "messages": read_messages_element,
    "responses": read_responses_element,
}

IMAGES = frozenset({"image_url", "input_image", "image", "computer_screenshot"})
AUDIO = frozenset({"input_audio"})
FILES = frozenset({"file", "input_file", "document"})
"""Types of the parts that hold images, sound and documents."""

_MARKS = {kinds: tuple(b'"%s"' % kind.encode() for kind in sorted(kinds)) for kinds in (IMAGES, AUDIO, FILES)}


class Question(msgspec.Struct, frozen=True):
    """The last thing that a person wrote, and the raw turns up to it, itself included.

    Without turns (a plain prompt) `turns` is empty and `text` is all there is. Without any message of a
    person all turns count and the text is empty.
    """

    text: str
    turns: tuple[bytes, ...] = ()


def last_question(document: Document, dialect_name: str) -> Question:
    """Return what was asked last; tool results are no question."""
    field = TURN_FIELDS.get(dialect_name)
    if field is None:
        return Question("")
    turns = document.elements(field)
    if turns is None:
        text = document.value(field)
        return Question(text if isinstance(text, str) else "")
    read = _READERS.get(dialect_name)
    if read is None:
        return Question("\n".join(text for text in map(decode, turns) if isinstance(text, str)), turns)
    for index in range(len(turns) - 1, -1, -1):
        if read(turns[index]).speaks:
            turn = decode(turns[index])
            text = _text(turn.get("content")) if isinstance(turn, dict) else ""
            return Question(text, turns[: index + 1])
    return Question("", turns)


def shows_images(document: Document, dialect_name: str) -> bool:
    """Tell whether any turn or tool result holds an image, wherever its bytes are."""
    return shows(document, dialect_name, IMAGES)


def shows(document: Document, dialect_name: str, kinds: frozenset[str]) -> bool:
    """Tell whether any turn or tool result holds a part of `kinds`: `IMAGES`, `AUDIO` or `FILES`."""
    field = TURN_FIELDS.get(dialect_name)
    raw = None if field is None else document.get(field)
    marks = _MARKS[kinds]
    if field is None or raw is None or not _names_any(raw, marks):
        return False
    # Only the turns that name a kind are decoded: the words may as well stand in a text or in arguments.
    return any(
        _holds(decode(turn), kinds) for turn in document.elements(field) or () if _names_any(turn, marks)
    )


def _names_any(raw: bytes, marks: tuple[bytes, ...]) -> bool:
    plain = with_plain_letters(raw)
    return any(mark in plain for mark in marks)


def _text(content: object) -> str:
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        return ""
    texts = (part.get("text") for part in content if isinstance(part, dict))
    return "\n".join(text for text in texts if isinstance(text, str))


def _holds(turn: object, kinds: frozenset[str]) -> bool:
    if not isinstance(turn, dict):
        return False
    for part in (turn.get("content"), turn.get("output")):
        for inner in part if isinstance(part, list) else (part,):
            kind = inner.get("type") if isinstance(inner, dict) else None
            if not isinstance(kind, str):
                continue
            if kind in kinds or (kind == "tool_result" and _holds(inner, kinds)):
                return True
    return False
