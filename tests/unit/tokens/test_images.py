from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.tokens.images import (
    MAX_IMAGE_TOKENS,
    Area,
    Flat,
    ImageRule,
    Patches,
    Size,
    Tiles,
    image_tokens,
    read_size,
)
from proxy.tokens.models import profile_for

PNG = b"\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR" + (800).to_bytes(4, "big") + (600).to_bytes(4, "big")
GIF = b"GIF89a" + (320).to_bytes(2, "little") + (200).to_bytes(2, "little")
_RIFF = b"RIFF\x00\x00\x00\x00WEBP"
WEBP_EXTENDED = _RIFF + b"VP8X" + bytes(8) + (1919).to_bytes(3, "little") + (1079).to_bytes(3, "little")
WEBP_LOSSLESS = _RIFF + b"VP8L" + bytes(4) + b"\x2f" + (99 | 49 << 14).to_bytes(4, "little") + bytes(5)
WEBP_LOSSY = (
    _RIFF + b"VP8 " + bytes(4) + b"\x00\x00\x00\x9d\x01\x2a" + (640).to_bytes(2, "little")
    + (480).to_bytes(2, "little")
)  # fmt: skip
_APP1 = b"\xff\xe1" + (5000).to_bytes(2, "big") + bytes(4998)
_TABLE = b"\xff\xc4\x00\x05\x00\x00\x00"
_FRAME = b"\xff\xff\xc2\x00\x11\x08" + (768).to_bytes(2, "big") + (1024).to_bytes(2, "big") + bytes(9)
JPEG = b"\xff\xd8" + _APP1 + _TABLE + _FRAME


@pytest.mark.parametrize(
    ("head", "size"),
    [
        (PNG, Size(800, 600)),
        (GIF, Size(320, 200)),
        (WEBP_EXTENDED, Size(1920, 1080)),
        (WEBP_LOSSLESS, Size(100, 50)),
        (WEBP_LOSSY, Size(640, 480)),
        (JPEG, Size(1024, 768)),
    ],
)
def test_reads_the_size_from_the_header(head: bytes, size: Size) -> None:
    assert read_size(head) == size
    assert read_size(head + b"\x00" * 100) == size


@pytest.mark.parametrize("head", [PNG, GIF, WEBP_EXTENDED, WEBP_LOSSLESS, WEBP_LOSSY, JPEG])
def test_a_cut_header_has_no_size(head: bytes) -> None:
    for length in (0, 1, 4, 9, len(head) // 2):
        assert read_size(head[:length]) is None


@given(st.binary(max_size=200), st.sampled_from([b"", b"\xff\xd8", b"GIF89a", PNG[:8], _RIFF + b"VP8X"]))
def test_survives_any_bytes(noise: bytes, start: bytes) -> None:
    size = read_size(start + noise)
    assert size is None or (size.width > 0 and size.height > 0)


@pytest.mark.parametrize(
    ("rule", "size", "detail", "tokens"),
    [
        # OpenAI's own examples for gpt-4o: 765 for a square, 1,105 for 2048 x 4096, 85 for low detail.
        (Tiles(85, 170), Size(1024, 1024), "high", 765),
        (Tiles(85, 170), Size(2048, 4096), "high", 1105),
        (Tiles(85, 170), Size(4096, 8192), "low", 85),
        (Tiles(85, 170), Size(100, 100), "auto", 255),
        (Tiles(85, 170), None, "auto", 765),
        (Tiles(2833, 5667), Size(1024, 1024), "auto", 25_501),
        # Measured by others on GPT-5.5 and 6: 1,229 for a megapixel, 14,364 for twelve.
        (Patches(120, None, 2500, None), Size(1024, 1024), "auto", 1229),
        (Patches(120, None, 2500, None), Size(4032, 3024), "auto", 14_364),
        (Patches(120, 10_000, 2500, 10_000), Size(4032, 3024), "auto", 12_000),
        (Patches(120, None, 2500, None), Size(4032, 3024), "high", 3000),
        (Patches(120, None, 2500, None), Size(4032, 3024), "low", 308),
        (Patches(120, 2500, 2500, 10_000), Size(3200, 3200), "original", 12_000),
        (Area(1568), Size(750, 750), "auto", 750),
        (Area(1568), Size(4000, 4000), "auto", 1568),
        (Flat(1100), Size(10, 10), "auto", 1100),
    ],
)
def test_charges_what_the_provider_publishes(
    rule: ImageRule, size: Size | None, detail: str, tokens: int
) -> None:
    assert image_tokens(rule, size, detail) == tokens


@pytest.mark.parametrize(
    "model", ["gpt-4o", "gpt-4o-mini", "gpt-4.1-nano", "gpt-5.2", "gpt-6", "o3", "claude", "x"]
)
@pytest.mark.parametrize("detail", ["low", "high", "original", "auto", "nonsense"])
def test_no_picture_costs_more_than_the_bound(model: str, detail: str) -> None:
    for size in (Size(1, 1), Size(2**32 - 1, 2**32 - 1), Size(1, 65_535), Size(65_535, 1)):
        assert 0 < image_tokens(profile_for(model).image, size, detail) <= MAX_IMAGE_TOKENS
