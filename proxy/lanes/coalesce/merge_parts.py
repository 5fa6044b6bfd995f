"""What a request puts into a merged call, and the body that several make. Pure; text stays as written.

    embeddings   `input`: a text, texts, a list of token ids (which is one input), lists of token ids
    moderations  `input`: a text or texts; a list of objects is one multimodal input and stays alone
    completions  `prompt`: as embeddings' `input`; `n` choices for each prompt

Texts and token ids are never in one call. What cannot be read, or is refused for certain (an empty text or
list, bytes that are no UTF-8), is left alone, so that it harms nobody.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import msgspec

from proxy.core.document import Document
from proxy.core.json_values import decode

FIELDS = {"embeddings": "input", "moderations": "input", "completions": "prompt"}
"""The member that holds a request's inputs, by dialect."""

_TOKENS = re.compile(rb"\[[ \t\r\n]*+\d++(?:[ \t\r\n]*+,[ \t\r\n]*+\d++)*+[ \t\r\n]*+\]")
_TOKENS_TAKEN = frozenset({"embeddings", "completions"})
_ONLY_USAGE = re.compile(rb'\{\s*+(?:"include_usage"\s*+:\s*+(?:true|false|null)\s*+)?\}')
_BOM = b"\xef\xbb\xbf"


class Part(msgspec.Struct, frozen=True):
    """One request's share of a merged call: its inputs as raw JSON, with how many choices each."""

    items: tuple[bytes, ...]
    is_text: bool
    choices_per_item: int = 1

    @property
    def kind(self) -> bytes:
        """What must be equal for two parts to be in one call, besides their keys."""
        return b"text" if self.is_text else b"tokens"

    @property
    def most_tokens(self) -> int:
        """How many tokens the inputs have at most, since no vocabulary has tokens without a byte of text.

        Of token ids it is their number.
        """
        if self.is_text:
            return sum(map(len, self.items))
        return sum(item.count(b",") + 1 for item in self.items)

    def texts(self) -> list[str]:
        """Return the inputs as text; none where they are token ids."""
        if not self.is_text:
            return []
        return [text for item in self.items if isinstance(text := decode(item), str)]


def part_of(dialect: str, document: Document) -> Part | None:
    """Return what a request puts into a merged call, `None` for one that is not merged."""
    field = FIELDS.get(dialect)
    if field is None or document.duplicates or document.raw.startswith(_BOM):
        return None
    choices = _choices(document) if dialect == "completions" else 1
    inputs = document.get(field)
    if inputs is None or choices is None or not _is_text(inputs):
        return None
    if inputs.startswith(b'"'):
        return Part((inputs,), True, choices) if len(inputs) > 2 else None
    if _TOKENS.fullmatch(inputs):
        return Part((inputs,), False, choices) if dialect in _TOKENS_TAKEN else None
    items = document.array(field)
    if not items:
        return None
    if all(item.startswith(b'"') and len(item) > 2 for item in items):
        return Part(items, True, choices)
    if dialect in _TOKENS_TAKEN and all(_TOKENS.fullmatch(item) for item in items):
        return Part(items, False, choices)
    return None


def _is_text(raw: bytes) -> bool:
    if raw.isascii():
        return True
    try:
        raw.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True


def most_choice_tokens(document: Document) -> int | None:
    """Return how long each choice of a completions request may be, `None` where that is not known."""
    best_of, most = document.get("best_of"), document.value("max_tokens")
    if best_of not in (None, b"null", b"1") or not isinstance(most, int) or isinstance(most, bool):
        # Those of which the best is taken are paid for, too.
        return None
    return most if most > 0 else None


def _choices(document: Document) -> int | None:
    """Return `n` of a completions request, `None` where what it asks for does not survive merging.

    A seed promises the same text again, which with some servers depends on what else is in the call (vLLM).
    Stream options beyond the usage event may add figures for the whole call to every event.
    """
    if document.get("seed") not in (None, b"null"):
        return None
    options = document.get("stream_options")
    if options not in (None, b"null") and not _ONLY_USAGE.fullmatch(options):
        return None
    wanted = document.get("n")
    if wanted is None or wanted == b"null":
        return 1
    return int(wanted) if re.fullmatch(rb"[1-9]\d{0,2}", wanted) else None


def merged_body(dialect: str, document: Document, parts: Sequence[Part]) -> bytes:
    """Return the body of the call for all parts: the given request's, with everybody's inputs."""
    inputs = b"[" + b",".join(item for part in parts for item in part.items) + b"]"
    return document.set(FIELDS[dialect], inputs).to_bytes()
