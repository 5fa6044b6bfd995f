"""Read what an answer says about its timing."""

from __future__ import annotations

import re

from tests.support.raw_client import RawAnswer

ENTRY = re.compile(r"(\w+);dur=([\d.]+)")


def entries(answer: RawAnswer) -> dict[str, float]:
    """Return Weir's own `Server-Timing` by entry, in milliseconds."""
    lines = [line for line in answer.all("server-timing") if "overhead;" in line]
    assert len(lines) == 1, answer.headers
    assert re.fullmatch(r"\w+;dur=\d+\.\d{3}(, \w+;dur=\d+\.\d{3})*", lines[0]), lines
    return {name: float(ms) for name, ms in ENTRY.findall(lines[0])}
