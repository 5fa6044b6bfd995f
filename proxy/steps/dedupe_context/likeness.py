"""Which passages say the same: exactly, or nearly by the word triples that they have in common.

Owns what "the same" means, and finds it without comparing everything with everything: of two sets that are
alike to a degree, the few greatest elements of one are among those of the other at least once (prefix
filtering: Chaudhuri et al., "A primitive operator for similarity joins", 2006), so only passages that share
one of these are compared, and at most a few. Work is linear in the text. Nothing is random: words are
numbered in the order in which they come, so every process finds the same, and the rare ones are the greatest.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Sequence
from typing import Literal

import msgspec

from proxy.steps.dedupe_context import wording
from proxy.steps.dedupe_context.wording import Sentence

Compare = Literal["sentences", "words"]

LONGEST_NEAR_CHARS = 32_768
"""Longer passages are compared exactly only: no retriever returns them, and reading them takes time."""

_MOST_COMPARED = 8
_MOST_SHARING = 16
_SHINGLE_WORDS = 3
_WORD_BITS = 30


class Passage(msgspec.Struct, frozen=True):
    """What is compared of a passage.

    rest       whatever else must be equal, such as the other fields of a JSON object
    is_exact   similar is not enough: nothing says that this comes from a retriever
    """

    text: str
    rest: str = ""
    is_exact: bool = False


class _Kept(msgspec.Struct, frozen=True):
    """A passage that stays, as others are compared with it."""

    rest: str
    shingles: frozenset[int]
    sentences: tuple[Sentence, ...]
    weighty: tuple[tuple[str, str], ...]


class Seen:
    """The passages that stay so far, known by numbers in the order in which they came."""

    def __init__(self, similarity: float, compare: Compare = "sentences") -> None:
        self._similarity = similarity
        self._compare = compare
        self._exact: dict[tuple[str, str], int] = {}
        self._near: dict[int, _Kept] = {}
        self._sharing: dict[int, list[int]] = {}
        self._words: dict[str, int] = {}
        self._gone: set[int] = set()
        self._count = 0

    def knows(self, passage: Passage) -> bool:
        """Tell whether an equal passage stays; nothing is added."""
        known = self._exact.get((_squeezed(passage), passage.rest))
        return known is not None and known not in self._gone

    def find_or_add(self, passage: Passage) -> tuple[int, bool]:
        """Return the number of the passage that says the same, or of this one, which is new (`True`)."""
        key = (_squeezed(passage), passage.rest)
        known = self._exact.get(key)
        if known is not None and known not in self._gone:
            return known, False
        number = self._count
        if self._similarity < 1 and not _is_exact(passage):
            paragraphs = wording.paragraphs(passage.text)
            shingles = [self._shingles(words) for words in paragraphs]
            whole = frozenset[int]().union(*shingles)
            prefix = sorted(whole, reverse=True)[: self._prefix_length(len(whole))]
            kept = _Kept(
                passage.rest,
                whole,
                wording.sentences(passage.text) if self._compare == "sentences" else (),
                wording.weighty([word for words in paragraphs for word in words]),
            )
            like = self._alike(kept, shingles, prefix)
            if like is not None:
                return like, False
            self._keep(number, kept, prefix)
        self._exact[key] = number
        self._count += 1
        return number, True

    def forget(self, numbers: Collection[int]) -> None:
        """Take passages back that do not stay after all."""
        self._gone.update(numbers)

    def _keep(self, number: int, kept: _Kept, prefix: Sequence[int]) -> None:
        self._near[number] = kept
        for value in prefix:
            sharing = self._sharing.setdefault(value, [])
            if len(sharing) < _MOST_SHARING:
                sharing.append(number)

    def _alike(self, new: _Kept, paragraphs: Sequence[frozenset[int]], prefix: Sequence[int]) -> int | None:
        shared = Counter(number for value in prefix for number in self._sharing.get(value, ()))
        # Most in common first; of equals the earliest, because counters keep the order of first sight.
        for number, _ in shared.most_common(_MOST_COMPARED):
            known = self._near[number]
            if number not in self._gone and known.rest == new.rest and self._says_all(known, new, paragraphs):
                return number
        return None

    def _says_all(self, known: _Kept, new: _Kept, paragraphs: Sequence[frozenset[int]]) -> bool:
        """Tell whether a known passage makes the new one superfluous.

        Either each sentence of the new one is there, so that nothing is lost with it; or, compared by words,
        each paragraph is there nearly, with the same numbers and negations in the same places.
        """
        common = len(known.shingles & new.shingles)
        if common < self._similarity * (len(known.shingles) + len(new.shingles) - common):
            return False
        if self._compare == "sentences":
            return _has_sentences(known.sentences, new.sentences)
        if known.weighty != new.weighty:
            return False
        return all(len(known.shingles & part) >= self._similarity * len(part) for part in paragraphs)

    def _prefix_length(self, size: int) -> int:
        return size - math.ceil(self._similarity * size) + 1

    def _shingles(self, words: Sequence[str]) -> frozenset[int]:
        known = self._words
        codes = [known.setdefault(word, len(known) + 1) for word in words]
        if len(codes) < _SHINGLE_WORDS:
            codes += [0] * (_SHINGLE_WORDS - len(codes))
        return frozenset(
            [
                (first << 2 * _WORD_BITS) | (second << _WORD_BITS) | third
                for first, second, third in zip(codes, codes[1:], codes[2:], strict=False)
            ]
        )


def _has_sentences(known: Sequence[Sentence], new: Sequence[Sentence]) -> bool:
    """Tell whether all sentences are known; the last may lack its end."""
    whole = {sentence.words for sentence in known}
    last = len(new) - 1
    return all(
        sentence.words in whole
        or (place == last and not sentence.is_ended and _is_cut_short(sentence.words, whole))
        for place, sentence in enumerate(new)
    )


def _is_cut_short(words: str, whole: Collection[str]) -> bool:
    """Tell whether a sentence breaks off in one of others, before nothing that a statement hangs on."""
    for other in whole:
        if other.startswith(f"{words} "):
            return not any(map(wording.is_weighty, other[len(words) :].split()))
    return False


def _is_exact(passage: Passage) -> bool:
    return passage.is_exact or len(passage.text) > LONGEST_NEAR_CHARS or wording.looks_like_code(passage.text)


def _squeezed(passage: Passage) -> str:
    """Return a text with its whitespace made one; as it is where that may mean something, or takes long."""
    return passage.text.strip("\r\n").rstrip() if _is_exact(passage) else " ".join(passage.text.split())
