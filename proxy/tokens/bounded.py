"""Counting one text in bounded time, whatever the text.

Owns the guards around the tokenizer: long runs of one character are reckoned from their period, long
texts are encoded in pieces, very long ones are sampled. Refuses to know about models and messages.

Why: a run of about a million spaces makes tiktoken 0.14 panic, and one long call holds a thread for as
long as it takes. No piece given to the encoder is longer than `CHUNK_BYTES`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from proxy.tokens.port import Count

RUN_CHARACTERS = 1_000
"""Runs of one character longer than this are reckoned, not encoded."""
CHUNK_BYTES = 64 * 1024
FULL_COUNT_BYTES = 128 * 1024
"""Longer texts (after runs are taken out) are estimated from samples of 64 KiB in all."""

_SAMPLES = 32
_SAMPLE_BYTES = 2 * 1024
_BORDER_SEARCH_CHARACTERS = 4 * 1024
_MAX_WINDOWS = 4_096
_MAX_RUNS = 64
# A multiple of three (digits are split in threes) and of 256 (token lengths of other runs are powers of
# two up to 128): adding one period to a run adds the same number of tokens each time.
_PERIOD = 768

Encode = Callable[[str], list[int]]


def count_bounded(encode: Encode, text: str) -> Count:
    """Count a text with `encode`; exact unless a run, a cut inside a word or a sample came into it."""
    if len(text) < RUN_CHARACTERS:
        return Count(len(encode(text)), True)
    rest, run_tokens = _take_out_runs(encode, text)
    exact = rest is text
    rest_bytes = utf8_length(rest)
    if rest_bytes > FULL_COUNT_BYTES:
        return Count(run_tokens + min(_sampled(encode, rest), rest_bytes), False)
    tokens = run_tokens
    for chunk, is_clean_cut in _chunks(rest):
        tokens += len(encode(chunk))
        exact = exact and is_clean_cut
    return Count(tokens, exact)


def utf8_length(text: str) -> int:
    """Return the length in UTF-8; a lone surrogate takes three bytes, like its replacement character."""
    return len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))


def byte_estimate(text: str) -> int:
    """Estimate without a vocabulary: four ASCII characters or three other bytes a token, rounded up."""
    ascii_characters = len(text) if text.isascii() else len(text.encode("ascii", "ignore"))
    return -(-ascii_characters // 4) + -(-(utf8_length(text) - ascii_characters) // 3)


def _take_out_runs(encode: Encode, text: str) -> tuple[str, int]:
    """Shorten long runs by whole periods; return the rest and the tokens that the removed part costs."""
    pieces: list[str] = []
    tokens, taken = 0, 0
    per_period: dict[str, int] = {}
    for start, end in _long_runs(text):
        removed = (end - start) // _PERIOD * _PERIOD - _PERIOD
        if removed <= 0:
            continue
        character = text[start]
        if character not in per_period:
            one, two = (len(encode(character * _PERIOD * times)) for times in (1, 2))
            per_period[character] = two - one
        tokens += removed // _PERIOD * per_period[character]
        pieces.append(text[taken : end - removed])
        taken = end
    if not pieces:
        return text, 0
    pieces.append(text[taken:])
    return "".join(pieces), tokens


def _long_runs(text: str) -> Iterator[tuple[int, int]]:
    """Yield the borders of runs, by looking at windows that every run over `RUN_CHARACTERS` must fill.

    In texts of more than two million characters the windows lie further apart, and shorter runs stay in:
    such a text is sampled anyway.
    """
    width = RUN_CHARACTERS // 2
    stride = max(width, len(text) // _MAX_WINDOWS)
    at, floor, found = 0, 0, 0
    while at + width <= len(text) and found < _MAX_RUNS:
        character = text[at]
        if text[at + width - 1] == character and text.count(character, at, at + width) == width:
            start, earliest = at, max(floor, at - width)
            while start > earliest and text[start - 1] == character:
                start -= 1
            floor = _run_end(text, at + width, character)
            found += 1
            yield start, floor
            at += (floor - at) // stride * stride
        at += stride


def _run_end(text: str, at: int, character: str) -> int:
    """Find where a run ends by doubling and then halving steps: each look is one scan in C."""
    step = 1024
    while at + step <= len(text) and text.count(character, at, at + step) == step:
        at += step
        step *= 2
    while step:
        if at + step <= len(text) and text.count(character, at, at + step) == step:
            at += step
        step //= 2
    return at


def _chunks(text: str) -> Iterator[tuple[str, bool]]:
    """Cut a text into pieces of at most `CHUNK_BYTES`; say of each whether its end is a token border."""
    at = 0
    while at < len(text):
        chunk = text[at : at + CHUNK_BYTES]
        if not chunk.isascii() and utf8_length(chunk) > CHUNK_BYTES:
            chunk = chunk[: CHUNK_BYTES // 4]
        end = at + len(chunk)
        border = end if end == len(text) else _border_before(text, end)
        yield text[at : border or end], border is not None
        at = border or end


def _border_before(text: str, end: int) -> int | None:
    """Find a space after a non-space near `end`: in both encodings a token always begins there."""
    floor = end - _BORDER_SEARCH_CHARACTERS
    space = text.rfind(" ", floor, end)
    while space > floor:
        if not text[space - 1].isspace():
            return space
        space = text.rfind(" ", floor, space)
    return None


def _sampled(encode: Encode, text: str) -> int:
    """Estimate from evenly spaced samples, so that a text that changes character midway counts right."""
    width = _SAMPLE_BYTES if text.isascii() else _SAMPLE_BYTES // 2
    last = len(text) - width
    offsets = [last * index // (_SAMPLES - 1) for index in range(_SAMPLES)]
    tokens = sum(len(encode(text[offset : offset + width])) for offset in offsets)
    return -(-tokens * len(text) // (_SAMPLES * width))
