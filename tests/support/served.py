"""A scripted upstream with Weir in front of it, in one `with`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.support.raw_upstream import RawUpstream, Script
from tests.support.weir import RunningWeir, weir

UPSTREAM = "http://upstream.test/v1"
"""Stands in policies for the scripted upstream's own URL."""


@contextmanager
def served(
    tmp_path: Path, script: Script, policies: str | None = None, reads_body: bool = True, **settings: Any
) -> Iterator[tuple[RunningWeir, RawUpstream]]:
    """Serve until the block ends. Policies without an upstream of their own use the script."""
    with RawUpstream(script, reads_body=reads_body) as upstream:
        placed = None if policies is None else policies.replace(UPSTREAM, upstream.url)
        with weir(tmp_path, upstream.url, placed, **settings) as proxy:
            yield proxy, upstream
