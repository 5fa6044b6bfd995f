"""Owns the spelling of single values in policies: durations, sizes, URLs, names. Text in, value out.

Every function raises `ValueError` with a message that says what is wanted; `Misspelled`, which is one, adds
a suggestion. Positions, key paths and secrecy belong to the caller.
"""

from __future__ import annotations

import re
from urllib.parse import SplitResult, urlsplit

_DURATION = re.compile(r"(\d{1,9}(?:\.\d{1,6})?)(ms|s|m|h)", re.ASCII)
_SIZE = re.compile(r"(\d{1,9})(B|KiB|MiB|GiB)", re.ASCII)
_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
_BYTES = {"B": 1, "KiB": 1024, "MiB": 1024**2, "GiB": 1024**3}
_WRONG_SIZE_UNIT = re.compile(r"(\d{1,9})\s*([kKmMgG])[iI]?[bB]?", re.ASCII)
_WRONG_DURATION_UNIT = re.compile(
    r"(\d{1,9})\s*(ms|s|m|h|seconds?|secs?|minutes?|mins?|hours?|hrs?|days?|d)", re.IGNORECASE | re.ASCII
)
_SEVERAL_UNITS = re.compile(r"(?=\d)(?:(\d{1,6})h)?\s*(?:(\d{1,6})m)?\s*(?:(\d{1,6})s)?", re.ASCII)
# A literal path or model name has no use for these; someone who writes them thinks of regular expressions.
_REGEXP = re.compile(r"\.\*|\.\+|^\^|\$$|\\[dws.]|\[[^\]]*\]|\(.*\)|\|")
# What callers append to a base URL themselves; elsewhere the bare words may be part of an address.
_API_PATH = re.compile(
    r"/chat/completions$|/v1/(?:completions|embeddings|messages|models|moderations|responses)$"
)
# RFC 9110, section 5.1: a field name is a token.
_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,128}")


class Misspelled(ValueError):
    """A value that is not spelled as wanted; `hint` suggests the spelling that may be meant."""

    def __init__(self, problem: str, hint: str) -> None:
        super().__init__(problem)
        self.hint = hint


DURATION_PATTERN = r"[0-9]{1,9}(\.[0-9]{1,6})?(ms|s|m|h)"
SIZE_PATTERN = r"[0-9]{1,9}(B|KiB|MiB|GiB)"


def duration_seconds(text: str) -> float:
    """Return the seconds that `20ms`, `5s`, `10m` or `24h` stand for."""
    found = _DURATION.fullmatch(text)
    if found is None:
        raise Misspelled(
            "a duration is a number with a unit, such as 20ms, 5s, 10m or 24h", _duration_hint(text)
        )
    # Dividing keeps 20ms the float 0.02, which multiplying by 0.001 does not.
    number = float(found[1])
    return number / 1000 if found[2] == "ms" else number * _SECONDS[found[2]]


def wait_seconds(text: str) -> float:
    """Return what `duration_seconds` does, for waits that are a matter of milliseconds."""
    try:
        return duration_seconds(text)
    except Misspelled as problem:
        if not re.fullmatch(r"[0-9]{1,9}", text):
            raise
        raise Misspelled(str(problem), f"did you mean {text}ms?") from None


def _duration_hint(text: str) -> str:
    if re.fullmatch(r"[0-9]{1,9}", text):
        return f"did you mean {text}s?"
    several = _SEVERAL_UNITS.fullmatch(text)
    if several is not None and sum(part is not None for part in several.groups()) > 1:
        hours, minutes, seconds = (int(part or 0) for part in several.groups())
        minutes += hours * 60
        return f"did you mean {minutes * 60 + seconds}s?" if seconds else f"did you mean {minutes}m?"
    found = _WRONG_DURATION_UNIT.fullmatch(text)
    if found is None:
        return ""
    unit = found[2].lower() if found[2].lower() == "ms" else found[2][0].lower()
    if unit == "d":
        return f"did you mean {int(found[1]) * 24}h?"
    return f"did you mean {found[1]}{unit}?"


def size_bytes(text: str) -> int:
    """Return the bytes that `512B`, `64KiB`, `10MiB` or `1GiB` stand for."""
    found = _SIZE.fullmatch(text)
    if found is None:
        wrong = _WRONG_SIZE_UNIT.fullmatch(text)
        hint = f"did you mean {wrong[1]}{wrong[2].upper()}iB?" if wrong else ""
        raise Misspelled("a size is a number with a unit, such as 64KiB or 10MiB", hint)
    return int(found[1]) * _BYTES[found[2]]


def base_url(text: str) -> str:
    """Return an upstream's base URL without its trailing slash."""
    parts = http_url(text)
    if parts.username is not None or parts.password is not None:
        raise ValueError("a base URL carries no credentials; use api_key")
    if "?" in text or "#" in text:
        raise ValueError("a base URL has no query and no fragment")
    api_path = _API_PATH.search(text.rstrip("/"))
    if api_path is not None:
        ending = api_path[0].removeprefix("/v1")
        raise Misspelled("a base URL ends before the path of an API", f"leave out {ending}")
    return text.rstrip("/")


def odd_base_url(url: str) -> str:
    """Return what is odd about a base URL that can be used, or nothing."""
    if urlsplit(url).path:
        return ""
    return "the base URL has no path, but most OpenAI-compatible servers answer under /v1"


def looks_like_regexp(pattern: str) -> bool:
    """Tell whether whoever wrote a pattern is likely to have thought of a regular expression."""
    return _REGEXP.search(pattern) is not None


def outbound_proxy(text: str) -> str:
    """Return `env`, `off`, or the URL of an HTTP proxy."""
    if text in ("env", "off"):
        return text
    parts = http_url(text)
    if parts.path not in ("", "/") or "?" in text or "#" in text:
        raise ValueError("a proxy's URL ends with its host and port")
    return text.rstrip("/")


def http_url(text: str) -> SplitResult:
    """Return the parts of an http or https URL that names a host."""
    if not text.isascii() or any(character <= " " or character == "\x7f" for character in text):
        raise ValueError("a URL has no spaces, control or non-ASCII characters")
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError:
        raise ValueError("this is not a valid URL") from None
    if parts.scheme not in ("http", "https"):
        raise ValueError("a URL begins with http:// or https://")
    if not parts.hostname:
        raise ValueError("the URL names no host")
    if port == 0:
        raise ValueError("port 0 cannot be connected to")
    return parts


def credential(text: str) -> str:
    """Return an API key. It becomes a header value, where a line break would begin another header."""
    if not text:
        raise ValueError("the key is empty; leave api_key out to pass the caller's credentials")
    if not text.isascii() or text != text.strip() or not text.isprintable():
        raise ValueError("the key has spaces around it, line breaks, control or non-ASCII characters")
    return text


def header_name(text: str) -> str:
    """Return a header's name in lower case."""
    if _HEADER_NAME.fullmatch(text) is None:
        raise ValueError("this is not a header name")
    return text.lower()


def label(text: str) -> str:
    """Return the name of a route or an upstream: it will stand in logs, metrics and headers."""
    if not text.strip() or len(text) > 100:
        raise ValueError("a name has 1 to 100 characters")
    if not text.isprintable():
        raise ValueError("a name has no line breaks or control characters")
    return text


def path_pattern(text: str) -> str:
    """Return a pattern for the path of a request target."""
    if looks_like_regexp(text) and (not text.startswith(("/", "*")) or "?" in text):
        raise ValueError("patterns are globs that know only *; regular expressions are not supported")
    if not text.startswith(("/", "*")):
        raise Misspelled("a path begins with /", f"did you mean /{text}?")
    if "?" in text or "#" in text:
        raise ValueError("paths are matched without their query")
    return text


def method_pattern(text: str) -> str:
    """Return a pattern for a request method; methods are case-sensitive (RFC 9110, section 9.1)."""
    if text != text.upper():
        raise Misspelled("methods are written in capitals", f"did you mean {text.upper()}?")
    return text


def absolute_path(text: str) -> str:
    """Return a file's path; relative ones would depend on where Weir was started."""
    if not text.startswith("/") or "\0" in text:
        raise ValueError("an absolute path is wanted")
    return text
