"""The two vocabularies that ship with Weir: reading, checking and building them.

Owns the files under `data/` and everything that must match them: hashes, split patterns, special
tokens. Refuses the network and tiktoken's own loader (which downloads) altogether, and refuses to
raise: a vocabulary that is missing or damaged is left out, and reported.
"""

from __future__ import annotations

import binascii
import gzip
import hashlib
import threading
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from types import MappingProxyType

from proxy.tokens.port import EncodingName, TextEncoder


@dataclass(frozen=True, slots=True)
class VocabularySpec:
    """What a data file must contain. `sha256` is of the decompressed content."""

    name: EncodingName
    sha256: str
    pattern: str
    special_tokens: Mapping[str, int]


class VocabularyError(Exception):
    """A vocabulary file that cannot be used; the message says which and why."""


# Patterns and special tokens are part of the two published encodings (openai/tiktoken, MIT: see NOTICE);
# any other spelling would count differently.
_LOWER = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_UPPER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]"
_CONTRACTION = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
_O200K_PATTERN = "|".join(
    (
        rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+{_CONTRACTION}",
        rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*{_CONTRACTION}",
        r"\p{N}{1,3}",
        r" ?[^\s\p{L}\p{N}]+[\r\n/]*",
        r"\s*[\r\n]+",
        r"\s+(?!\S)",
        r"\s+",
    )
)
_CL100K_PATTERN = "|".join(
    (
        r"'(?i:[sdmt]|ll|ve|re)",
        r"[^\r\n\p{L}\p{N}]?+\p{L}++",
        r"\p{N}{1,3}+",
        r" ?[^\s\p{L}\p{N}]++[\r\n]*+",
        r"\s++$",
        r"\s*[\r\n]",
        r"\s+(?!\S)",
        r"\s",
    )
)

SPECS: tuple[VocabularySpec, ...] = (
    VocabularySpec(
        name=EncodingName.O200K,
        sha256="446a9538cb6c348e3516120d7c08b09f57c36495e2acfffe59a5bf8b0cfb1a2d",
        pattern=_O200K_PATTERN,
        special_tokens=MappingProxyType({"<|endoftext|>": 199999, "<|endofprompt|>": 200018}),
    ),
    VocabularySpec(
        name=EncodingName.CL100K,
        sha256="223921b76ee99bde995b7ff738513eef100fb51d18c93597a113bcffe865b2a7",
        pattern=_CL100K_PATTERN,
        special_tokens=MappingProxyType(
            {
                "<|endoftext|>": 100257,
                "<|fim_prefix|>": 100258,
                "<|fim_middle|>": 100259,
                "<|fim_suffix|>": 100260,
                "<|endofprompt|>": 100276,
            }
        ),
    ),
)


class Vocabularies:
    """The shipped encodings, each built when it is first asked for: that takes a few tenths of a second.

    `report` hears one sentence about each that cannot be built. `directory` holds `<encoding>.tiktoken.gz`;
    by default it is this package's own data. For any thread.
    """

    def __init__(
        self, report: Callable[[str], None] | None = None, directory: Traversable | Path | None = None
    ) -> None:
        self._report = report
        self._directory = files(__package__).joinpath("data") if directory is None else directory
        self._built: dict[EncodingName, TextEncoder | None] = {}
        self._building = threading.Lock()

    def get(self, name: EncodingName) -> TextEncoder | None:
        """Return the encoder, `None` if its vocabulary cannot be used. Never raises."""
        try:
            return self._built[name]
        except KeyError:
            return self._build_once(name)

    def _build_once(self, name: EncodingName) -> TextEncoder | None:
        with self._building:
            if name not in self._built:
                self._built[name] = self._try_to_build(next(spec for spec in SPECS if spec.name is name))
            return self._built[name]

    def _try_to_build(self, spec: VocabularySpec) -> TextEncoder | None:
        try:
            return _build(spec, read_ranks(spec, self._directory))
        except VocabularyError as error:
            if self._report is not None:
                self._report(f"{error}: counts for its models are estimated from byte length")
            return None


def read_ranks(spec: VocabularySpec, directory: Traversable | Path) -> dict[bytes, int]:
    """Read, decompress, check and parse one vocabulary file; raises `VocabularyError`.

    The format is one token a line: its bytes in base64, a space, its rank.
    """
    try:
        content = gzip.decompress(directory.joinpath(f"{spec.name}.tiktoken.gz").read_bytes())
    except (OSError, EOFError, zlib.error) as error:
        raise VocabularyError(f"vocabulary {spec.name} cannot be read ({type(error).__name__})") from error
    if hashlib.sha256(content).hexdigest() != spec.sha256:
        raise VocabularyError(f"vocabulary {spec.name} does not have the expected sha256")
    decode = binascii.a2b_base64
    return {decode(token): int(rank) for token, rank in map(bytes.split, content.splitlines())}


def _build(spec: VocabularySpec, ranks: dict[bytes, int]) -> TextEncoder:
    # Imported here so that a platform for which tiktoken has no build still starts and estimates.
    try:
        import tiktoken
    except ImportError as error:
        raise VocabularyError(f"vocabulary {spec.name} cannot be used (tiktoken does not import)") from error
    try:
        encoding = tiktoken.Encoding(
            str(spec.name),
            pat_str=spec.pattern,
            mergeable_ranks=ranks,
            special_tokens=dict(spec.special_tokens),
        )
    # A future tiktoken may refuse in ways that nobody can list now; starting without it is better.
    except Exception as error:
        raise VocabularyError(
            f"vocabulary {spec.name} cannot be used ({type(error).__name__} in tiktoken)"
        ) from error
    # The compiled tokenizer has copied the ranks; the object would keep the table for things that nobody
    # does here: nearly 40 MB for both in every worker.
    ranks.clear()
    return encoding
