"""Text and token counts of the simulator: cheap, lossless and repeatable.

A token is up to eight ASCII word characters, or any other single character, with the white space before it.
English then has four to five characters to a token. No vocabulary is loaded and nothing is learnt.
"""

from __future__ import annotations

import hashlib
import random
import re
from collections.abc import Iterable

_TOKEN = re.compile(r"\s*(?:[A-Za-z0-9_]{1,8}|[^\sA-Za-z0-9_])|\s+")

_WORDS = tuple(
    "a the this that each one some most other stable river water level gate flow stone bank bridge valley "
    "spring summer winter morning evening careful simple steady open narrow wide deep shallow clear quiet "
    "small large first second early later often seldom always near beyond below above between before after "
    "while measure guide hold carry turn rise fall reach follow cross settle divide gather release keep pass "
    "slow quick even until because where when which and or but with from into over under through across "
    "along naïve café façade mill wheel lock canal meadow engine signal record plan table answer".split()
)


def split_tokens(text: str) -> tuple[str, ...]:
    """Return the tokens of `text`; joined they are `text` again."""
    return tuple(_TOKEN.findall(text))


def count_tokens(text: str) -> int:
    """Return how many tokens `text` has."""
    return len(_TOKEN.findall(text))


def digest_of(parts: Iterable[str]) -> str:
    """Return a hex digest of `parts` that depends on where each part ends."""
    digest = hashlib.blake2b(digest_size=16)
    for part in parts:
        raw = part.encode("utf-8", "surrogatepass")
        digest.update(len(raw).to_bytes(8, "big"))
        digest.update(raw)
    return digest.hexdigest()


def seeded(*parts: str) -> random.Random:
    """Return a generator whose numbers depend on `parts` alone."""
    return random.Random(int(digest_of(parts), 16))


def prose(generator: random.Random, tokens: int) -> tuple[str, ...]:
    """Return exactly `tokens` tokens of harmless sentences."""
    pieces: list[str] = []
    while len(pieces) < tokens:
        words = generator.choices(_WORDS, k=generator.randint(6, 14))
        sentence = " ".join(words).capitalize() + "."
        pieces.extend(split_tokens(f" {sentence}" if pieces else sentence))
    return tuple(pieces[:tokens])
