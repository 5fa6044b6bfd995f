"""Which vocabulary, framing and image rule a model name stands for, and how far to trust the result.

Owns every table keyed by model name in this package. Refuses to fail on an unknown name: the longest
known prefix, then the family, then a cautious default decides, and the profile says that it estimates.

Sources: tiktoken's model table (0.14.0); the cookbook's chat framing; OpenAI's and Anthropic's image
pages. Safety factors for other providers' tokenizers are judgement, not measurement.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from proxy.tokens.images import Area, Flat, ImageRule, Patches, Tiles
from proxy.tokens.port import EncodingName


@dataclass(frozen=True, slots=True)
class ModelProfile:
    """How to count for one model.

    `exact_text`: the encoding is known to be this model's own. `exact_messages`: the classic chat
    framing is known to hold too (reasoning models add hidden tokens). `scale_percent` is applied to
    text tokens of models with another tokenizer. `key` is equal for profiles that count alike.
    """

    encoding: EncodingName
    image: ImageRule
    exact_text: bool = False
    exact_messages: bool = False
    scale_percent: int = 100
    message_tokens: int = 3
    name_tokens: int = 1
    audio_tokens_per_second: int = 10
    key: str = field(init=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(
            self,
            "key",
            f"{self.encoding} {self.image} {self.exact_text} {self.exact_messages} {self.scale_percent}"
            f" {self.message_tokens} {self.name_tokens} {self.audio_tokens_per_second}",
        )


@dataclass(frozen=True, slots=True)
class _TextRow:
    """A row of the name table; `is_open` rows match any continuation, others only `prefix` or `prefix-…`."""

    prefix: str
    encoding: EncodingName
    exact_text: bool = True
    exact_messages: bool = True
    is_open: bool = False
    message_tokens: int = 3
    name_tokens: int = 1

    def matches(self, name: str) -> bool:
        rest = name.removeprefix(self.prefix)
        return name.startswith(self.prefix) and (self.is_open or rest[:1] in ("", "-", ":", "@"))


_O200K, _CL100K = EncodingName.O200K, EncodingName.CL100K

_TEXT_ROWS: tuple[_TextRow, ...] = (
    _TextRow("chatgpt-4o", _O200K),
    _TextRow("gpt-4o", _O200K),
    _TextRow("gpt-4.1", _O200K),
    _TextRow("gpt-4.5", _O200K),
    _TextRow("gpt-5", _O200K, exact_messages=False, is_open=True),
    _TextRow("gpt-oss", _O200K, exact_messages=False),
    _TextRow("o1", _O200K, exact_messages=False),
    _TextRow("o3", _O200K, exact_messages=False),
    _TextRow("o4-mini", _O200K, exact_messages=False),
    _TextRow("gpt-4", _CL100K),
    _TextRow("gpt-3.5", _CL100K),
    _TextRow("gpt-35-turbo", _CL100K),
    _TextRow("gpt-3.5-turbo-0301", _CL100K, message_tokens=4, name_tokens=-1),
    _TextRow("text-embedding-ada-002", _CL100K),
    _TextRow("text-embedding-3-small", _CL100K),
    _TextRow("text-embedding-3-large", _CL100K),
    _TextRow("davinci-002", _CL100K, exact_messages=False),
    _TextRow("babbage-002", _CL100K, exact_messages=False),
    # OpenAI's names that tiktoken does not know: the newest vocabulary for what is new or unheard of, the
    # older one for what is older than both.
    _TextRow("gpt-", _O200K, exact_text=False, exact_messages=False, is_open=True),
    _TextRow("chatgpt-", _O200K, exact_text=False, exact_messages=False, is_open=True),
    _TextRow("codex", _O200K, exact_text=False, exact_messages=False, is_open=True),
    _TextRow("computer-use", _O200K, exact_text=False, exact_messages=False, is_open=True),
    _TextRow("omni-moderation", _O200K, exact_text=False, exact_messages=False, is_open=True),
    _TextRow("text-", _CL100K, exact_text=False, exact_messages=False, is_open=True),
    _TextRow("code-", _CL100K, exact_text=False, exact_messages=False, is_open=True),
    _TextRow("davinci", _CL100K, exact_text=False, exact_messages=False, is_open=True),
    _TextRow("babbage", _CL100K, exact_text=False, exact_messages=False, is_open=True),
)
_REASONING_ROW = _TextRow("o", _O200K, exact_text=False, exact_messages=False, is_open=True)
_REASONING_NAME = re.compile(r"o\d")

_SMALL_PATCH_CAP = 1536
_GPT_4_TILES = Tiles(85, 170)
_O_TILES = Tiles(75, 150)
_NEWEST_PATCHES = Patches(120, None, 2500, None)

_IMAGE_ROWS: tuple[tuple[str, ImageRule], ...] = (
    ("gpt-3", _GPT_4_TILES),
    ("gpt-4", _GPT_4_TILES),
    ("chatgpt-4o", _GPT_4_TILES),
    ("gpt-4o-mini", Tiles(2833, 5667)),
    ("gpt-4.1-mini", Patches(162, _SMALL_PATCH_CAP, _SMALL_PATCH_CAP, _SMALL_PATCH_CAP)),
    ("gpt-4.1-nano", Patches(246, _SMALL_PATCH_CAP, _SMALL_PATCH_CAP, _SMALL_PATCH_CAP)),
    ("gpt-5", Tiles(70, 140)),
    ("gpt-5.1", Tiles(70, 140)),
    ("gpt-5-mini", Patches(162, _SMALL_PATCH_CAP, _SMALL_PATCH_CAP, _SMALL_PATCH_CAP)),
    ("gpt-5-nano", Patches(246, _SMALL_PATCH_CAP, _SMALL_PATCH_CAP, _SMALL_PATCH_CAP)),
    ("gpt-5.", Patches(120, 6144, 6144, 6144)),
    ("gpt-5.4", Patches(120, 2500, 2500, 10_000)),
    ("gpt-5.5", Patches(120, 10_000, 2500, 10_000)),
    ("gpt-5.6", _NEWEST_PATCHES),
    ("gpt-", _NEWEST_PATCHES),
    ("o1", _O_TILES),
    ("o3", _O_TILES),
    ("o4-mini", Patches(172, _SMALL_PATCH_CAP, _SMALL_PATCH_CAP, _SMALL_PATCH_CAP)),
)

_CLAUDE_STANDARD = (
    "claude-2",
    "claude-3",
    "claude-sonnet-4",
    "claude-haiku-4",
    "claude-opus-4-0",
    "claude-opus-4-1",
    "claude-opus-4-2",
    "claude-opus-4-5",
    "claude-opus-4-6",
)
_CLAUDE_STANDARD_IMAGE, _CLAUDE_HIGH_IMAGE = Area(1568), Area(4784)
_OTHER_IMAGE = Area(4784)
# Measured by others on Gemini 3: 1,065 to 1,101 tokens for any size.
_GEMINI_IMAGE = Flat(1100)
_OTHER_AUDIO_TOKENS_PER_SECOND = 32

_FAMILY_SCALE_PERCENT: tuple[tuple[str, int], ...] = (
    ("claude", 135),
    ("gemini", 120),
    ("gemma", 120),
    ("mistral", 120),
    ("mixtral", 120),
    ("llama", 110),
    ("deepseek", 110),
    ("qwen", 115),
)
_OTHER_SCALE_PERCENT = 120


def profile_for(model: str) -> ModelProfile:
    """Return the profile of a model name: dated, fine-tuned (`ft:…`), vendor-prefixed or unknown."""
    name = base_name(model)
    rows = [row for row in _TEXT_ROWS if row.matches(name)]
    if not rows and _REASONING_NAME.match(name):
        rows = [_REASONING_ROW]
    if not rows:
        return _other_profile(name)
    row = max(rows, key=lambda candidate: len(candidate.prefix))
    return ModelProfile(
        encoding=row.encoding,
        image=_longest(_IMAGE_ROWS, name) or _O_TILES,
        exact_text=row.exact_text,
        exact_messages=row.exact_messages,
        message_tokens=row.message_tokens,
        name_tokens=row.name_tokens,
    )


def base_name(model: str) -> str:
    """Reduce `openai/gpt-4o`, `ft:gpt-4o-2024-08-06:org::id` and `GPT-4o` to the name of the base model."""
    name = model.strip().lower().rpartition("/")[2]
    return name.removeprefix("ft:").partition(":")[0] if name.startswith("ft:") else name


def _other_profile(name: str) -> ModelProfile:
    scale_percent = next(
        (percent for family, percent in _FAMILY_SCALE_PERCENT if family in name), _OTHER_SCALE_PERCENT
    )
    return ModelProfile(
        encoding=_O200K,
        image=_other_image(name),
        scale_percent=scale_percent,
        audio_tokens_per_second=_OTHER_AUDIO_TOKENS_PER_SECOND,
    )


def _other_image(name: str) -> ImageRule:
    if "claude" in name:
        is_standard = any(part in name for part in _CLAUDE_STANDARD)
        return _CLAUDE_STANDARD_IMAGE if is_standard else _CLAUDE_HIGH_IMAGE
    return _GEMINI_IMAGE if "gemini" in name else _OTHER_IMAGE


def _longest(rows: Sequence[tuple[str, ImageRule]], name: str) -> ImageRule | None:
    matching = [row for row in rows if name.startswith(row[0])]
    return max(matching, key=lambda row: len(row[0]))[1] if matching else None
