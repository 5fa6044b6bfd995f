"""What a picture costs, from its size, under each rule that a provider has published.

Owns the arithmetic and the reading of sizes out of image headers. Refuses to decode pixels, to fetch
anything, and to know which model uses which rule (see `models`). All results are estimates.

Sources: OpenAI's image cost pages (tiles, 32-pixel patches), Anthropic's vision page (area / 750).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias, assert_never

MAX_IMAGE_TOKENS = 50_000
"""No rule here charges more for one picture; `bounds` relies on it and a test checks it."""

_UNCAPPED_PATCHES = 40_000
_LOW_DETAIL_PIXELS = 512


@dataclass(frozen=True, slots=True)
class Size:
    """Pixels."""

    width: int
    height: int


ASSUMED_SIZE = Size(1024, 1024)
"""Taken for pictures given by URL or file id, and for formats that cannot be read."""


@dataclass(frozen=True, slots=True)
class Tiles:
    """`base` plus `per_tile` for each 512-pixel tile, after fitting 2048 x 2048 and a short side of 768."""

    base: int
    per_tile: int


@dataclass(frozen=True, slots=True)
class Patches:
    """Patches of 32 pixels times a multiplier. A cap of None means that the provider states none."""

    multiplier_percent: int
    auto_cap: int | None
    high_cap: int | None
    original_cap: int | None


@dataclass(frozen=True, slots=True)
class Area:
    """width x height / 750, capped."""

    cap: int


@dataclass(frozen=True, slots=True)
class Flat:
    """The same for every picture."""

    tokens: int


ImageRule: TypeAlias = Tiles | Patches | Area | Flat


def image_tokens(rule: ImageRule, size: Size | None, detail: str) -> int:
    """Estimate one picture; `detail` is the caller's `low`, `high`, `original` or `auto` (else auto)."""
    known = size or ASSUMED_SIZE
    match rule:
        case Tiles():
            return _tile_tokens(rule, known, detail)
        case Patches():
            return _patch_tokens(rule, known, detail)
        case Area():
            return min(rule.cap, _ceil_div(known.width * known.height, 750))
        case Flat():
            return rule.tokens
        case _:
            assert_never(rule)


def _tile_tokens(rule: Tiles, size: Size, detail: str) -> int:
    if detail == "low":
        return rule.base
    long_side, short_side = max(size.width, size.height), min(size.width, size.height)
    if long_side > 2048:
        long_side, short_side = 2048, max(1, short_side * 2048 // long_side)
    if short_side > 768:
        long_side, short_side = long_side * 768 // short_side, 768
    return rule.base + rule.per_tile * _ceil_div(long_side, 512) * _ceil_div(short_side, 512)


def _patch_tokens(rule: Patches, size: Size, detail: str) -> int:
    cap = {"high": rule.high_cap, "original": rule.original_cap}.get(detail, rule.auto_cap)
    if detail == "low":
        cap = _ceil_div(_LOW_DETAIL_PIXELS, 32) ** 2
    patches = _ceil_div(size.width, 32) * _ceil_div(size.height, 32)
    return _ceil_div(min(patches, cap or _UNCAPPED_PATCHES) * rule.multiplier_percent, 100)


def _ceil_div(dividend: int, divisor: int) -> int:
    return -(-dividend // divisor)


def read_size(head: bytes) -> Size | None:
    """Read width and height from the first bytes of a PNG, GIF, WebP or JPEG; None if they are not there."""
    size: Size | None = None
    if head.startswith(b"\x89PNG\r\n\x1a\n") and len(head) >= 24:
        size = Size(int.from_bytes(head[16:20], "big"), int.from_bytes(head[20:24], "big"))
    elif head.startswith((b"GIF87a", b"GIF89a")) and len(head) >= 10:
        size = Size(int.from_bytes(head[6:8], "little"), int.from_bytes(head[8:10], "little"))
    elif head.startswith(b"RIFF") and head[8:12] == b"WEBP" and len(head) >= 30:
        size = _webp_size(head)
    elif head.startswith(b"\xff\xd8"):
        size = _jpeg_size(head)
    return size if size and size.width and size.height else None


def _webp_size(head: bytes) -> Size | None:
    match head[12:16]:
        case b"VP8X":
            return Size(int.from_bytes(head[24:27], "little") + 1, int.from_bytes(head[27:30], "little") + 1)
        case b"VP8L":
            bits = int.from_bytes(head[21:25], "little")
            return Size((bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1)
        case b"VP8 ":
            return Size(
                int.from_bytes(head[26:28], "little") & 0x3FFF,
                int.from_bytes(head[28:30], "little") & 0x3FFF,
            )
        case _:
            return None


def _jpeg_size(head: bytes) -> Size | None:
    """Walk the segments up to the frame header (SOF0-SOF15 but DHT, JPG and DAC), which holds the size."""
    at = 2
    while at + 9 <= len(head):
        if head[at] != 0xFF:
            return None
        marker = head[at + 1]
        if marker == 0xFF:
            at += 1
        elif 0xC0 <= marker <= 0xCF and marker not in (0xC4, 0xC8, 0xCC):
            return Size(
                int.from_bytes(head[at + 7 : at + 9], "big"), int.from_bytes(head[at + 5 : at + 7], "big")
            )
        else:
            at += 2 + int.from_bytes(head[at + 2 : at + 4], "big")
    return None
