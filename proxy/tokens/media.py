"""What pictures, sound, video and files in a message cost: documented estimates, never text.

Owns the shapes in which the three dialects carry media and the rates for what is not a picture. Refuses
to tokenize base64, to decode more of it than a header, and to fetch what a URL points to. Nothing here
is exact.

Sources: audio, 10 tokens a second on OpenAI and 32 on Gemini; PDF pages, about 2,400 tokens a page
(Anthropic states 1,500 to 3,000), a page taken as 50 KB; the other rates are judgement.
"""

from __future__ import annotations

import binascii
from collections.abc import Mapping

from proxy.tokens.images import image_tokens, read_size
from proxy.tokens.models import ModelProfile

PAGE_TOKENS = 2_400
"""One page of a document; also what a file known only by its id or URL is taken for."""
PAGE_BYTES = 50_000
REFERENCED_AUDIO_SECONDS = 60
REFERENCED_VIDEO_TOKENS = 5_000
VIDEO_TOKENS_PER_SECOND = 300
VIDEO_BYTES_PER_SECOND = 250_000
OPAQUE_CHARACTERS_PER_TOKEN = 5
"""Encrypted reasoning and the like: base64 of text at about four characters a token."""

_IMAGE_KINDS = frozenset(
    ("image", "image_url", "input_image", "computer_screenshot", "image_generation_call", "image_file")
)
_AUDIO_KINDS = frozenset(("input_audio", "audio", "audio_url"))
_VIDEO_KINDS = frozenset(("video", "video_url", "input_video"))
_FILE_KINDS = frozenset(("file", "input_file", "document", "container_upload"))
MEDIA_KINDS = _IMAGE_KINDS | _AUDIO_KINDS | _VIDEO_KINDS | _FILE_KINDS

# Where a part may keep its content, either as a string or one object deeper.
_CONTENT_KEYS = (
    "image_url", "input_audio", "audio_url", "video_url", "file", "source", "url",
    "file_data", "data", "result", "audio", "video", "image", "file_url",
)  # fmt: skip
_HEAD_CHARACTERS = 64
_JPEG_HEAD_CHARACTERS = 256 * 1024
_AUDIO_BYTES_PER_SECOND: Mapping[str, int] = {"mp3": 16_000, "pcm16": 48_000, "wav": 48_000}
_COMPRESSED_AUDIO_BYTES_PER_SECOND = 8_000


def media_tokens(part: Mapping[str, object], profile: ModelProfile) -> int:
    """Estimate one content part whose `type` is in `MEDIA_KINDS`."""
    kind = part.get("type")
    content = _content(part)
    if kind in _IMAGE_KINDS:
        return image_tokens(profile.image, read_size(decode_head(content)), _detail(part))
    if kind in _AUDIO_KINDS:
        return _audio_tokens(content, _format(part), profile.audio_tokens_per_second)
    if kind in _VIDEO_KINDS:
        return _video_tokens(content)
    return _file_tokens(content, profile)


def unknown_data_tokens(data: str, profile: ModelProfile) -> int:
    """Estimate base64 in a part of unknown type, by what its first bytes say that it is."""
    head = decode_head(data)
    size = read_size(head)
    if size is not None:
        # A forged header may claim any size: what is unknown never costs more than it would as text.
        return min(image_tokens(profile.image, size, "auto"), len(data))
    if head.startswith((b"RIFF", b"ID3", b"OggS", b"fLaC")):
        return _audio_tokens(data, "", profile.audio_tokens_per_second)
    return PAGE_TOKENS


def opaque_tokens(data: str) -> int:
    """Estimate encrypted content that the provider turns back into text."""
    return -(-len(data) // OPAQUE_CHARACTERS_PER_TOKEN)


def looks_like_data(text: str) -> bool:
    """Tell base64 and data URLs from text, by three short looks, for parts of unknown type only."""
    if len(text) < 4096:
        return False
    if text.startswith("data:"):
        return ";base64," in text[:256]
    middle = len(text) // 2
    looks = text[:256], text[middle : middle + 256], text[-256:]
    return all(look.isascii() and not look.strip(_BASE64_ALPHABET) for look in looks)


_BASE64_ALPHABET = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/-_=\r\n"


def decode_head(data: str) -> bytes:
    """Decode the first bytes of base64 or of a data URL: few, unless a JPEG needs more to show its size."""
    start = data.find(",", 0, 256) + 1 if data.startswith("data:") else 0
    if start == 0 and data.startswith(("data:", "http:", "https:")):
        return b""
    head = _decode(data[start : start + _HEAD_CHARACTERS])
    if head.startswith(b"\xff\xd8"):
        return _decode(data[start : start + _JPEG_HEAD_CHARACTERS])
    return head


def _decode(base64: str) -> bytes:
    whole = base64[: len(base64) // 4 * 4]
    try:
        return binascii.a2b_base64(whole)
    except (binascii.Error, ValueError):
        return b""


def _content(part: Mapping[str, object]) -> str:
    """Find the data or reference of a part; an empty string when it has only an id or an unknown shape."""
    holder: Mapping[str, object] = part
    for _ in range(3):
        inner = next((holder[key] for key in _CONTENT_KEYS if holder.get(key)), None)
        if isinstance(inner, str):
            return inner
        if not isinstance(inner, dict):
            break
        holder = inner
    return ""


def _detail(part: Mapping[str, object]) -> str:
    return _nested_word(part, "detail", "image_url") or "auto"


def _format(part: Mapping[str, object]) -> str:
    return _nested_word(part, "format", "input_audio")


def _nested_word(part: Mapping[str, object], key: str, holder_key: str) -> str:
    holder = part.get(holder_key)
    word = holder.get(key) if isinstance(holder, dict) else part.get(key)
    return word if isinstance(word, str) else ""


def _inline_bytes(content: str) -> int:
    """Return how many bytes are carried inline; 0 for a reference."""
    if not content or content.startswith(("http:", "https:")):
        return 0
    return len(content) * 3 // 4


def _audio_tokens(content: str, audio_format: str, tokens_per_second: int) -> int:
    size_bytes = _inline_bytes(content)
    if not size_bytes:
        return REFERENCED_AUDIO_SECONDS * tokens_per_second
    head = decode_head(content)
    bytes_per_second = _AUDIO_BYTES_PER_SECOND.get(audio_format, _COMPRESSED_AUDIO_BYTES_PER_SECOND)
    if head.startswith(b"RIFF") and head[8:16] == b"WAVEfmt ":
        bytes_per_second = max(1_000, int.from_bytes(head[28:32], "little"))
    return 1 + size_bytes * tokens_per_second // bytes_per_second


def _video_tokens(content: str) -> int:
    size_bytes = _inline_bytes(content)
    if not size_bytes:
        return REFERENCED_VIDEO_TOKENS
    return 1 + size_bytes * VIDEO_TOKENS_PER_SECOND // VIDEO_BYTES_PER_SECOND


def _file_tokens(content: str, profile: ModelProfile) -> int:
    size = read_size(decode_head(content))
    if size is not None:
        return image_tokens(profile.image, size, "auto")
    pages = 1 + _inline_bytes(content) // PAGE_BYTES
    return pages * PAGE_TOKENS
