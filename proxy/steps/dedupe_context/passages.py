"""Where the passages of a plain text are: in tags, behind labels, between separators.

Owns the shapes. What surrounds passages (instructions, the question) is never part of one: text before the
first label and after the last separator is left alone, and the last passage behind a label, whose end nothing
marks, is told apart (`Found.is_open`). Every search is linear in the text.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

import msgspec

from proxy.core.globs import fits
from proxy.steps.dedupe_context.config import Config
from proxy.steps.dedupe_context.likeness import Passage
from proxy.steps.dedupe_context.provenance import ABOUT, attribute_score, label_score, tag_attributes

_TAGS = ("document", "doc", "passage", "chunk", "search_result", "snippet")
_SPACE = " \t\r\n"

_LABEL = re.compile(
    r"^[ \t]{0,3}+(?:#{1,6} |\*\*|[-*] )?"
    r"(?:\[\^?(?:[A-Za-z]{1,12}[ #_-]?)?\d{1,4}\]"
    r"|(?i:source|document|doc|passage|chunk|excerpt|context|snippet|reference)[ \t]?[#(\[]?\d{1,4}\b[)\]]?)",
    re.MULTILINE,
)
_BEHIND_LABEL = " \t\r\n:.)–—-*]"
_RULE = re.compile(r"^[ \t]{0,3}+(?:-{3,}+|\*{3,}+|_{3,}+|={3,}+)[ \t\r]*+$", re.MULTILINE)
_FENCE = re.compile(r"^[ \t]{0,12}+(?:```|~~~)", re.MULTILINE)
_PARAGRAPH_END = re.compile(r"\n[ \t\r]*+\n")
# One search of a compiled pattern holds the interpreter, so long texts are searched in pieces.
_PIECE_CHARS = 32_768


class Found(msgspec.Struct, frozen=True):
    """One passage of a text.

    start, end   what goes if it goes: from its label or tag to the end of its words
    body         where its words start
    is_open      it reaches to the end of the text, so that what follows it (a question) may be in it
    """

    start: int
    body: int
    end: int
    passage: Passage
    score: float | None = None
    is_open: bool = False


class Layout(msgspec.Struct, frozen=True):
    """The passages of a text, in order. `preamble` ends where the first one may begin unmarked."""

    found: Sequence[Found] = ()
    preamble: int = 0


def read_passages(text: str, config: Config) -> Layout:
    """Return the passages of a text, in the first of the shapes that it has."""
    if config.markers:
        return _labelled(text, _marked_lines(text, config.markers), are_marked=True)
    if config.separator is not None:
        return _separated(text, _lines_that_fit(text, config.separator), is_exact=False)
    found = _tagged(text)
    if found:
        return Layout(found)
    labels = _all_lines(_LABEL, text)
    if labels:
        return _labelled(text, labels, are_marked=False)
    rules = _all_lines(_RULE, text)
    # Rules also part the documents of a YAML file: there only what is equal may be taken for a repetition.
    return _separated(text, _outside_fences(text, rules), is_exact=True) if rules else Layout()


# --- tags --------------------------------------------------------------------------------------------------


def _tagged(text: str) -> list[Found]:
    for name in _TAGS:
        if f"</{name}>" in text:
            found = list(_elements(text, name))
            if found:
                return found
    return []


def _elements(text: str, name: str) -> Iterator[Found]:
    """Yield the innermost elements of a name, with what is between their tags."""
    opening, closing = f"<{name}", f"</{name}>"
    position = 0
    while (close := text.find(closing, position)) >= 0:
        start = _opened_at(text, opening, position, close)
        inner = text.find(">", start, close) + 1 if start is not None else 0
        position = close + len(closing)
        if start is not None and inner:
            attributes = tag_attributes(text[start + len(opening) : inner])
            said = sorted(item for item in attributes.items() if item[0] not in ABOUT)
            passage = Passage(text[inner:close].strip("\r\n").rstrip(), repr(said) if said else "")
            yield Found(start, inner, position, passage, attribute_score(attributes))


def _opened_at(text: str, opening: str, position: int, close: int) -> int | None:
    """Return where the last tag of that name before `close` opens: `<document`, not `<documents`."""
    start = text.rfind(opening, position, close)
    while start >= 0:
        if text[start + len(opening)] in " \t\r\n>":
            return start
        start = text.rfind(opening, position, start)
    return None


# --- labels ------------------------------------------------------------------------------------------------


def _labelled(text: str, labels: Sequence[tuple[int, int]], *, are_marked: bool) -> Layout:
    """Return what stands between labels.

    Of several paragraphs behind a usual label the last may as well be an instruction between two passages:
    only what is said elsewhere may go then, however the passage scored. A policy's own markers say better.
    """
    found: list[Found] = []
    for index, (start, label_end) in enumerate(labels):
        is_open = index + 1 == len(labels)
        limit = len(text) if is_open else labels[index + 1][0]
        body = limit - len(text[label_end:limit].lstrip(_BEHIND_LABEL))
        end = body + len(text[body:limit].rstrip(_SPACE))
        if body >= end:
            continue
        line_end = text.find("\n", label_end, limit)
        match = label_score(text, label_end, limit if line_end < 0 else line_end)
        words = text[body:end]
        if match is not None:
            words = (text[label_end : match.start()] + text[match.end() : end]).lstrip(_BEHIND_LABEL)
        has_end = are_marked or _PARAGRAPH_END.search(text, body, end) is None
        score = float(match[1]) if match is not None and has_end else None
        found.append(Found(start, body, end, Passage(words), score, is_open))
    return Layout(found)


def _marked_lines(text: str, markers: Sequence[str]) -> list[tuple[int, int]]:
    """Return start and end of each label: what a marker's last * stands for is the passage's own."""
    labels = []
    for start, line in _lines(text):
        stripped = line.strip()
        for marker in markers:
            if fits(marker, stripped):
                labels.append((start, start + line.index(stripped) + _fixed_length(marker, stripped)))
                break
    return labels


def _fixed_length(marker: str, line: str) -> int:
    if not marker.endswith("*"):
        return len(line)
    position = 0
    for piece in marker.split("*"):
        position = line.index(piece, position) + len(piece)
    return position


# --- separators --------------------------------------------------------------------------------------------


def _separated(text: str, separators: Sequence[tuple[int, int]], *, is_exact: bool) -> Layout:
    """Return what follows each separator; the first passage, before them, has no beginning that is marked."""
    found: list[Found] = []
    for index, (start, label_end) in enumerate(separators):
        is_open = index + 1 == len(separators)
        limit = len(text) if is_open else separators[index + 1][0]
        body = limit - len(text[label_end:limit].lstrip(_SPACE))
        end = body + len(text[body:limit].rstrip(_SPACE))
        if body < end:
            found.append(Found(start, body, end, Passage(text[body:end], is_exact=is_exact), is_open=is_open))
    return Layout(found, separators[0][0] if separators else 0)


def _lines_that_fit(text: str, pattern: str) -> list[tuple[int, int]]:
    return [(start, start + len(line)) for start, line in _lines(text) if fits(pattern, line.strip())]


def _outside_fences(text: str, lines: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    fences = [start for start, _ in _all_lines(_FENCE, text)]
    outside = []
    passed = 0
    for start, end in lines:
        while passed < len(fences) and fences[passed] < start:
            passed += 1
        if passed % 2 == 0:
            outside.append((start, end))
    return outside


def _all_lines(pattern: re.Pattern[str], text: str) -> list[tuple[int, int]]:
    """Return start and end of every match of a pattern that begins with a line."""
    found: list[tuple[int, int]] = []
    start = 0
    while start < len(text):
        end = text.find("\n", start + _PIECE_CHARS) + 1 or len(text)
        found += [match.span() for match in pattern.finditer(text, start, end)]
        start = end
    return found


def _lines(text: str) -> Iterator[tuple[int, str]]:
    start = 0
    while start < len(text):
        end = text.find("\n", start)
        end = len(text) if end < 0 else end
        yield start, text[start:end]
        start = end + 1
