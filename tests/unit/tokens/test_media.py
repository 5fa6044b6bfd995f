from __future__ import annotations

import base64

import pytest

from proxy.tokens.media import (
    MEDIA_KINDS,
    PAGE_BYTES,
    PAGE_TOKENS,
    REFERENCED_VIDEO_TOKENS,
    decode_head,
    looks_like_data,
    media_tokens,
    opaque_tokens,
    unknown_data_tokens,
)
from proxy.tokens.models import profile_for

GPT_4O = profile_for("gpt-4o")
CLAUDE = profile_for("claude-opus-5-5")
_PNG_HEAD = b"\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR" + (512).to_bytes(4, "big") * 2
PNG = base64.b64encode(_PNG_HEAD + bytes(3000)).decode()
_JPEG_HEAD = b"\xff\xd8\xff\xe1" + (60_000).to_bytes(2, "big") + bytes(59_998)
JPEG = base64.b64encode(_JPEG_HEAD + b"\xff\xc0\x00\x11\x08\x02\x00\x02\x00" + bytes(9000)).decode()
ONE_TILE = 85 + 170


@pytest.mark.parametrize(
    "part",
    [
        {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PNG}"}},
        {"type": "image_url", "image_url": f"data:image/png;base64,{PNG}"},
        {"type": "input_image", "image_url": f"data:image/jpeg;base64,{JPEG}"},
        {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": PNG}},
        {"type": "image", "data": PNG, "mimeType": "image/png"},
        {"type": "image_generation_call", "result": PNG},
        {"type": "computer_screenshot", "image_url": f"data:image/png;base64,{PNG}"},
        {"type": "file", "file": {"file_data": f"data:image/png;base64,{PNG}"}},
    ],
)
def test_finds_the_picture_in_every_dialect(part: dict[str, object]) -> None:
    assert media_tokens(part, GPT_4O) == ONE_TILE


@pytest.mark.parametrize(
    "part",
    [
        {"type": "image_url", "image_url": {"url": "https://example.com/a.png"}},
        {"type": "input_image", "file_id": "file-1"},
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,%%%"}},
        {"type": "image_url", "image_url": None},
        {"type": "image", "source": {"type": "url", "url": "https://example.com/a.png"}},
        {"type": "image"},
    ],
)
def test_takes_a_picture_of_unknown_size_for_1024_square(part: dict[str, object]) -> None:
    assert media_tokens(part, GPT_4O) == 765


def test_low_detail_costs_the_base_only() -> None:
    url = "https://example.com/a.png"
    assert media_tokens({"type": "image_url", "image_url": {"url": url, "detail": "low"}}, GPT_4O) == 85
    assert media_tokens({"type": "input_image", "image_url": url, "detail": "low"}, GPT_4O) == 85


def test_charges_sound_by_its_length() -> None:
    mp3 = base64.b64encode(bytes(160_000)).decode()
    part = {"type": "input_audio", "input_audio": {"data": mp3, "format": "mp3"}}
    assert media_tokens(part, GPT_4O) == 101
    assert media_tokens(part, CLAUDE) == 321


def test_reads_the_byte_rate_of_a_wav() -> None:
    header = b"RIFF\x00\x00\x00\x00WAVEfmt \x10\x00\x00\x00\x01\x00\x01\x00" + (16_000).to_bytes(4, "little")
    wav = base64.b64encode(header + (32_000).to_bytes(4, "little") + bytes(320_000)).decode()
    part = {"type": "input_audio", "input_audio": {"data": wav, "format": "wav"}}
    assert media_tokens(part, GPT_4O) == pytest.approx(101, abs=1)


def test_charges_files_by_pages() -> None:
    pdf = base64.b64encode(b"%PDF-1.7" + bytes(2 * PAGE_BYTES)).decode()
    inline = {
        "type": "file",
        "file": {"filename": "a.pdf", "file_data": f"data:application/pdf;base64,{pdf}"},
    }
    source = {"type": "document", "source": {"type": "base64", "media_type": "application/pdf", "data": pdf}}
    assert media_tokens(inline, GPT_4O) == media_tokens(source, CLAUDE) == 3 * PAGE_TOKENS
    assert media_tokens({"type": "input_file", "file_id": "file-1"}, GPT_4O) == PAGE_TOKENS
    assert (
        media_tokens({"type": "input_file", "file_url": "https://example.com/a.pdf"}, GPT_4O) == PAGE_TOKENS
    )


def test_charges_video_by_size_or_flat() -> None:
    link = {"type": "video_url", "video_url": {"url": "https://example.com/a.mp4"}}
    inline = {"type": "video", "data": base64.b64encode(bytes(1_000_000)).decode()}
    assert media_tokens(link, GPT_4O) == REFERENCED_VIDEO_TOKENS
    assert media_tokens(inline, GPT_4O) == pytest.approx(1200, abs=2)


@pytest.mark.parametrize("kind", sorted(MEDIA_KINDS))
@pytest.mark.parametrize("content", [None, 5, [], {}, {"url": []}, {"data": {"data": {"data": {"data": 1}}}}])
def test_survives_any_shape(kind: str, content: object) -> None:
    for key in ("image_url", "source", "file", "input_audio", "detail", "url"):
        assert media_tokens({"type": kind, key: content}, GPT_4O) > 0


def test_decodes_only_the_beginning() -> None:
    assert len(decode_head(f"data:image/png;base64,{PNG}")) < 64
    assert decode_head("data:,") == b""
    assert decode_head("data:text/plain") == b""
    assert decode_head("https://example.com/AAAA") == b""


def test_recognises_data_only_by_length_and_alphabet() -> None:
    assert looks_like_data("A1+/" * 2000)
    assert looks_like_data("data:application/octet-stream;base64," + "A" * 5000)
    assert not looks_like_data("A1+/" * 20)
    assert not looks_like_data("plain text with spaces " * 500)
    assert not looks_like_data("数据" * 5000)


def test_charges_unknown_data_by_what_it_is() -> None:
    assert unknown_data_tokens(PNG, GPT_4O) == ONE_TILE
    assert unknown_data_tokens(base64.b64encode(b"ID3" + bytes(80_000)).decode(), GPT_4O) == 101
    assert unknown_data_tokens("A" * 500_000, GPT_4O) == PAGE_TOKENS


def test_charges_encrypted_content_by_its_length() -> None:
    assert opaque_tokens("A" * 5000) == 1000
    assert opaque_tokens("") == 0
