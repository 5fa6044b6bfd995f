"""Read a page of metrics."""

from __future__ import annotations


def series(page: bytes) -> set[str]:
    """Return every series of a Prometheus page: its name with its labels, without the value."""
    lines = page.decode().splitlines()
    return {line.rsplit(" ", 1)[0] for line in lines if line and not line.startswith("#")}
