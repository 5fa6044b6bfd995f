"""A path that is accepted is the same path to every server behind; what could be another one is refused."""

from __future__ import annotations

import posixpath
from urllib.parse import quote_from_bytes, unquote_to_bytes

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.core.errors import BAD_TARGET, ProxyError
from proxy.edge.request_target import matched_path

SEGMENTS = [
    *(b"v1", b"chat", b"a.b", b"..a", b"a..", b"...", b"~", b"a;b=c", b"%20", b"%c3%a9", b"a%2fb", b"100%25"),
    *(
        b".",
        b"..",
        b"",
        b"%2e",
        b"%2E%2e",
        b".%2e",
        b"%252e%252e",
        b"..;x",
        b"%2e%2e;x",
        b"%2f",
        b"%5c",
        b"a\\b",
    ),
    *(b"%00", b"%0d%0a", b"%2525", b"%", b"%zz", b"%ff", b"#"),
]
paths = st.lists(st.sampled_from(SEGMENTS), max_size=6).map(lambda segments: b"/" + b"/".join(segments))


def accepted(target: bytes) -> str | None:
    try:
        return matched_path(target)
    except ProxyError:
        return None


def readings(path: bytes) -> list[bytes]:
    """Return the path as servers may see it that decode once, twice or three times."""
    seen = [path]
    for _ in range(3):
        seen.append(unquote_to_bytes(seen[-1]))
    return seen


@given(paths | st.binary(max_size=30).map(lambda raw: b"/" + raw))
def test_no_server_behind_can_read_an_accepted_path_as_another_one(path: bytes) -> None:
    if accepted(path) is None:
        return
    for reading in readings(path.split(b"?", 1)[0]):
        without_parameters = b"/".join(segment.split(b";", 1)[0] for segment in reading.split(b"/"))
        for seen in (reading, without_parameters):
            assert (
                posixpath.normpath(seen).rstrip(b"/") == seen.rstrip(b"/").replace(b"//", b"/")
                or b";" in seen
            )
            assert not {b".", b".."} & set(seen.split(b"/"))
        assert b"//" not in reading
        assert b"\\" not in reading
        assert not any(byte < 0x20 or byte == 0x7F for byte in reading)


@given(paths, st.binary(max_size=20))
def test_a_query_changes_nothing(path: bytes, query: bytes) -> None:
    assert accepted(path + b"?" + query) == accepted(path)


@given(
    st.text(st.characters(codec="utf-8", min_codepoint=0x21, exclude_characters="/\\?#%\x7f;"), min_size=1)
)
def test_characters_beyond_ascii_are_decoded_once(name: str) -> None:
    path = b"/v1/" + quote_from_bytes(name.encode()).encode()
    assert accepted(path) == (f"/v1/{name}" if name not in (".", "..") else None)


@pytest.mark.parametrize(
    ("target", "path"),
    [
        (b"/", "/"),
        (b"/v1/chat/completions", "/v1/chat/completions"),
        (b"/v1/chat/completions/", "/v1/chat/completions"),
        (b"/v1/chat/completions?a=/../b", "/v1/chat/completions"),
        (b"/v1/a%20b", "/v1/a b"),
        (b"/v1/files/a..b", "/v1/files/a..b"),
        (b"/v1/.hidden", "/v1/.hidden"),
        (b"/v1/...", "/v1/..."),
        (b"/v1/a%2fb", "/v1/a/b"),
        (b"/v1/100%25", "/v1/100%"),
        (b"/v1/%zz", "/v1/%zz"),
        (b"/v1/" + b"x" * 1000, "/v1/" + "x" * 1000),
    ],
)
def test_these_are_accepted(target: bytes, path: str) -> None:
    assert matched_path(target) == path
    assert matched_path(target) == path, "and remembered"


@pytest.mark.parametrize(
    "target",
    [
        b"",
        b"*",
        b"v1/chat",
        b"http://other.test/v1",
        b"//other.test/v1",
        b"/v1/../admin",
        b"/v1/..",
        b"/..",
        b"/v1/./chat",
        b"/v1//chat",
        b"/v1/chat//",
        b"/v1/%2e%2e/admin",
        b"/v1/%252e%252e/admin",
        b"/v1/%25252e%25252e/admin",
        b"/v1/..;/admin",
        b"/v1/%2e%2e%3b/admin",
        b"/v1/a%2f..%2fadmin",
        b"/v1/a%2f%2fb",
        b"/v1/..%5cadmin",
        b"/v1\\admin",
        b"/v1/a%00",
        b"/v1/a%0d%0aX-Evil:%201",
        b"/v1/a#b",
        b"/v1/" + b"x" * 1000 + b"/../y",
    ],
)
def test_these_are_refused(target: bytes) -> None:
    for _ in range(2):
        with pytest.raises(ProxyError) as refusal:
            matched_path(target)
        assert refusal.value.kind is BAD_TARGET
