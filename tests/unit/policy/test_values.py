from __future__ import annotations

from collections.abc import Callable

import pytest

from proxy.policy import values


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("20ms", 0.02),
        ("5s", 5.0),
        ("10m", 600.0),
        ("24h", 86400.0),
        ("1.5s", 1.5),
        ("0s", 0.0),
        ("0.5ms", 0.0005),
    ],
)
def test_reads_durations(text: str, seconds: float) -> None:
    assert values.duration_seconds(text) == seconds


@pytest.mark.parametrize(
    "text", ["", "s", "-5s", "1e3s", "5 s", "5S", "5s ", "٣s", "1h30m", ".5s", "9" * 40 + "s", "off"]
)
def test_refuses_other_durations(text: str) -> None:
    with pytest.raises(ValueError, match="a duration is a number with a unit"):
        values.duration_seconds(text)


@pytest.mark.parametrize(
    ("text", "hint"),
    [("5", "5s?"), ("5 sec", "5s?"), ("3min", "3m?"), ("2 hours", "2h?"), ("7d", "168h?"), ("soon", "")],
)
def test_suggests_the_duration_that_may_be_meant(text: str, hint: str) -> None:
    with pytest.raises(values.Misspelled) as raised:
        values.duration_seconds(text)
    assert raised.value.hint == (f"did you mean {hint}" if hint else "")


@pytest.mark.parametrize(
    ("text", "size"), [("64KiB", 65536), ("10MiB", 10 * 1024**2), ("1GiB", 1024**3), ("512B", 512), ("0B", 0)]
)
def test_reads_sizes(text: str, size: int) -> None:
    assert values.size_bytes(text) == size


@pytest.mark.parametrize(
    ("text", "hint"),
    [("64KB", "64KiB?"), ("64k", "64KiB?"), ("10 mb", "10MiB?"), ("1G", "1GiB?"), ("64", "")],
)
def test_refuses_other_sizes_with_a_suggestion(text: str, hint: str) -> None:
    with pytest.raises(values.Misspelled) as raised:
        values.size_bytes(text)
    assert raised.value.hint == (f"did you mean {hint}" if hint else "")


@pytest.mark.parametrize(
    ("text", "url"),
    [
        ("https://api.openai.com/v1", "https://api.openai.com/v1"),
        ("http://127.0.0.1:8000/", "http://127.0.0.1:8000"),
        ("http://[::1]:8000/api/v2/", "http://[::1]:8000/api/v2"),
    ],
)
def test_reads_base_urls(text: str, url: str) -> None:
    assert values.base_url(text) == url


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("api.openai.com/v1", "begins with http"),
        ("ftp://x/v1", "begins with http"),
        ("https://", "names no host"),
        ("https:///v1", "names no host"),
        ("https://user:pw@host/v1", "no credentials"),
        ("https://user@host/v1", "no credentials"),
        ("https://host/v1?x=1", "no query"),
        ("https://host/v1?", "no query"),
        ("https://host/v1#f", "no fragment"),
        ("https://ho st/v1", "no spaces"),
        ("https://host/v1\n", "no spaces"),
        ("https://höst/v1", "non-ASCII"),
        ("https://host:99999/v1", "not a valid URL"),
        ("https://host:0/v1", "port 0"),
        ("https://[::1/v1", "not a valid URL"),
    ],
)
def test_refuses_other_base_urls(text: str, said: str) -> None:
    with pytest.raises(ValueError, match=said) as raised:
        values.base_url(text)
    assert "pw" not in str(raised.value)


def test_reads_outbound_proxies() -> None:
    assert values.outbound_proxy("env") == "env"
    assert values.outbound_proxy("off") == "off"
    assert values.outbound_proxy("http://u:p@proxy:3128/") == "http://u:p@proxy:3128"
    with pytest.raises(ValueError, match="host and port"):
        values.outbound_proxy("http://proxy:3128/path")


@pytest.mark.parametrize(
    ("read", "text"),
    [
        (values.credential, ""),
        (values.credential, "sk-a\n"),
        (values.credential, "sk-a\r\nX-Evil: 1"),
        (values.credential, " sk-a"),
        (values.credential, "schlüssel"),
        (values.header_name, "x team"),
        (values.header_name, "x-team:"),
        (values.header_name, ""),
        (values.label, "two\nlines"),
        (values.label, "  "),
        (values.label, "x" * 101),
        (values.path_pattern, "v1/chat"),
        (values.path_pattern, "/v1/chat?x=1"),
        (values.method_pattern, "post"),
        (values.absolute_path, "etc/key"),
    ],
)
def test_refuses_what_cannot_be_meant(read: Callable[[str], str], text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        read(text)


def test_accepts_what_can_be_meant() -> None:
    assert values.header_name("X-Team") == "x-team"
    assert values.label("优先") == "优先"
    assert values.path_pattern("*/chat/completions") == "*/chat/completions"
    assert values.method_pattern("POST") == "POST"
    assert values.absolute_path("/etc/key") == "/etc/key"
    assert values.credential("sk-a b$c") == "sk-a b$c"


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("15 s", "15s?"),
        ("5S", "5s?"),
        ("20 MS", "20ms?"),
        ("1h30m", "90m?"),
        ("1m 30s", "90s?"),
        ("2h5s", "7205s?"),
    ],
)
def test_suggests_durations_with_a_single_unit(text: str, hint: str) -> None:
    with pytest.raises(values.Misspelled) as raised:
        values.duration_seconds(text)
    assert raised.value.hint == f"did you mean {hint}"


@pytest.mark.parametrize(
    ("url", "hint"),
    [
        ("https://api.openai.com/v1/chat/completions", "leave out /chat/completions"),
        ("http://h/openai/chat/completions/", "leave out /chat/completions"),
        ("http://h/v1/responses", "leave out /responses"),
        ("http://h/v1/models", "leave out /models"),
    ],
)
def test_refuses_base_urls_that_end_in_an_apis_path(url: str, hint: str) -> None:
    with pytest.raises(values.Misspelled, match="ends before the path of an API") as raised:
        values.base_url(url)
    assert raised.value.hint == hint


def test_base_urls_whose_own_path_resembles_an_api_are_taken() -> None:
    for url in ("http://h/models", "http://h/v1/models/x", "http://h/chat"):
        assert values.base_url(url) == url


def test_only_a_base_url_without_a_path_is_odd() -> None:
    assert values.odd_base_url(values.base_url("http://h:8000/")) != ""
    assert values.odd_base_url("http://h/v1") == ""


@pytest.mark.parametrize("pattern", ["^/v1/chat", ".*", "^/v1/.*?$", "/v1/(chat|x)/?$", "(a|b)"])
def test_a_path_that_can_only_be_a_regular_expression_is_told_so(pattern: str) -> None:
    with pytest.raises(ValueError, match="regular expressions are not supported") as raised:
        values.path_pattern(pattern)
    assert not isinstance(raised.value, values.Misspelled)


def test_a_wait_without_a_unit_is_taken_for_milliseconds() -> None:
    assert values.wait_seconds("20ms") == 0.02
    for text, hint in (("20", "did you mean 20ms?"), ("5 sec", "did you mean 5s?"), ("soon", "")):
        with pytest.raises(values.Misspelled, match="a duration is a number with a unit") as raised:
            values.wait_seconds(text)
        assert raised.value.hint == hint
