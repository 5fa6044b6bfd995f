"""Compares what was seen twice: with Weir in the path and without. It owns what may differ: nothing else may.

Servers make ids and times anew for each request, so these are replaced by their order of appearance: that one
id stands in two places is compared, which id it is is not. llama.cpp reports how long it took; that goes.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

from tests.real.recorder import Request

_ID = re.compile(r"\b(?:chatcmpl|cmpl|resp|msg|call|toolu|rs|fc|req|modr|lc_run|run)[-_]+[0-9A-Za-z-]{8,}")
_RAW_ID = re.compile(_ID.pattern.encode())
_TIMES = {"created", "created_at", "completed_at"}
_DROPPED = {"timings"}
_HOP_BY_HOP = {b"connection", b"keep-alive", b"te", b"proxy-connection"}
_MADE_ANEW = {b"idempotency-key", b"traceparent"}


def settled(seen: Any) -> Any:
    """Return `seen` with ids and times replaced by what two runs have in common."""
    numbers: dict[str, str] = {}

    def name(found: re.Match[str]) -> str:
        return numbers.setdefault(found[0], f"<id {len(numbers) + 1}>")

    def settle(value: Any) -> Any:
        if isinstance(value, dict):
            return {
                key: "<time>" if key in _TIMES and value[key] is not None else settle(item)
                for key, item in value.items()
                if key not in _DROPPED
            }
        if isinstance(value, list):
            return [settle(item) for item in value]
        return _ID.sub(name, value) if isinstance(value, str) else value

    return settle(seen)


def differences(direct: Any, through: Any, place: str = "") -> Iterator[str]:
    """Yield a line for each place where two settled reports differ."""
    if isinstance(direct, dict) and isinstance(through, dict):
        for key in direct.keys() | through.keys():
            here = f"{place}.{key}"
            if key not in direct or key not in through:
                yield f"{here}: only {'through Weir' if key in through else 'directly'}"
            else:
                yield from differences(direct[key], through[key], here)
    elif isinstance(direct, list) and isinstance(through, list):
        if len(direct) != len(through):
            yield f"{place}: {len(direct)} directly, {len(through)} through Weir"
        for number, (one, other) in enumerate(zip(direct, through, strict=False)):
            yield from differences(one, other, f"{place}[{number}]")
    elif direct != through:
        yield f"{place}: {direct!r} directly, {through!r} through Weir"


def as_sent(requests: Iterable[Request]) -> Counter[Request]:
    """Return what a server was sent, in any order, without headers that are each hop's own or made anew.

    Ids in bodies are those of earlier answers.
    """
    return Counter(
        Request(
            request.method,
            request.target,
            tuple(
                (header, b"<anew>" if header.lower() in _MADE_ANEW else value)
                for header, value in request.headers
                if header.lower() not in _HOP_BY_HOP
            ),
            _RAW_ID.sub(b"<id>", request.body),
        )
        for request in requests
    )
