"""What a passage says, word by word and sentence by sentence, for comparing it with another.

Owns what makes no difference between two passages: case, punctuation around words, how lines are broken. In
what looks like code each character may mean something: there nothing is left aside.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

import msgspec

_BLANK_LINE = re.compile(r"\n[ \t\r]*\n")
# Chinese and Japanese put no spaces between words: each of their characters counts as one.
_WORD = re.compile(r"[\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff]|[^\s\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff]+")
_AROUND_WORDS = ".,;:!?\"'()[]*_`«»“”„‘’…·•。、，．！？：；（）「」『』【】"
_BETWEEN_WORDS = str.maketrans(dict.fromkeys(';:?"()[]*`\n\t\r', " "))
_ENDINGS = ".!?。！？…"
_SENTENCE_END = re.compile(r"[.!?…]+[\"'”’)\]]*(?=\s)|[。！？]")
# Braces, comparisons, arrows, assignments, tags; lines set in by code fences, tabs or four columns.
_CODE = re.compile(r"[{}<>=\\|&^~]|->|!\w|```|\w\[|\w\(|^(?:\t| {4})", re.MULTILINE)

# One of these more or less turns a statement into its opposite, whatever else is the same.
_TURNING = frozenset(
    "not no never none nor neither without except unless cannot nothing nobody nowhere hardly only "
    "nicht kein keine keinen nie ohne außer nichts nur ne pas jamais sans aucun rien seulement "
    "nunca sin ningún nada não sem nenhum non mai senza niente niet geen nooit inte ej aldrig ikke aldri ei "
    "не нет никогда без 不 没 無 无 未 非 ない ません".split()
)
_NUMBERS = frozenset(
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen "
    "seventeen eighteen nineteen twenty thirty forty fifty sixty seventy eighty ninety hundred thousand "
    "million billion trillion half quarter double triple first second third fourth fifth sixth seventh "
    "eighth ninth tenth once twice i ii iii iv v vi vii viii ix x xi xii "
    "一 二 三 四 五 六 七 八 九 十 百 千 万 亿 億 零".split()
)


class Sentence(msgspec.Struct, frozen=True):
    """One sentence: its words in one string, and whether its end is there."""

    words: str
    is_ended: bool


def looks_like_code(text: str) -> bool:
    """Tell whether characters that a reader passes over may mean something in a text."""
    return _CODE.search(text) is not None


def paragraphs(text: str) -> list[list[str]]:
    """Return the words of each paragraph that has any."""
    return [found for part in _BLANK_LINE.split(text) if (found := words(part))]


def sentences(text: str) -> tuple[Sentence, ...]:
    """Return the sentences of a text; a question is not the statement of the same words."""
    return tuple(_sentences(text))


def _sentences(text: str) -> Iterator[Sentence]:
    for part in _BLANK_LINE.split(text):
        start = 0
        ends = [match.end() for match in _SENTENCE_END.finditer(part)]
        for end in (*ends, len(part)):
            piece = part[start:end].strip()
            start = end
            found = words(piece)
            if found:
                bare = piece.rstrip("\"'”’)]*_")
                mark = " ?" if bare.endswith(("?", "？")) else ""
                yield Sentence(" ".join(found) + mark, bare[-1:] in _ENDINGS)


def words(text: str) -> list[str]:
    """Return the words of a text in lower case, without the punctuation around them."""
    folded = text.casefold()
    if not folded.isascii():
        return [word.strip(_AROUND_WORDS) or word for word in _WORD.findall(folded)]
    # The same for ASCII, several times faster; what stands inside of words and numbers stays.
    spaced = f"{folded} ".translate(_BETWEEN_WORDS)
    for mark in (". ", ", ", "! ", "' ", " '", "_ ", " _"):
        spaced = spaced.replace(mark, " ")
    return spaced.split()


def weighty(found: Sequence[str]) -> tuple[tuple[str, str], ...]:
    """Return the numbers and negations among words, each with the word after it."""
    following = (*found[1:], "")
    return tuple((word, after) for word, after in zip(found, following, strict=False) if is_weighty(word))


def is_weighty(word: str) -> bool:
    """Tell whether a statement hangs on a word: a number or a negation."""
    return (
        word in _TURNING or word in _NUMBERS or word.endswith(("n't", "n’t")) or any(map(str.isdigit, word))
    )
