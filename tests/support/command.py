"""Run the `weir` command as a process of its own, in an environment that configures nothing."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.weir_process import ROOT, WeirProcess

WEIR = [sys.executable, "-m", "proxy.cli.main"]
LIMIT_SECONDS = 20
BAD_POLICY = "version: 1\nroutes:\n  - name: chat\n    match: {path: /v1/x}\n    max_bdy: 1KiB\n"


def environment(**more: str) -> dict[str, str]:
    """Return an environment in which nothing configures Weir but `more`."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("WEIR_", "OPENAI_")) and not name.lower().endswith("_proxy")
    }
    return kept | {"PYTHONUNBUFFERED": "1"} | more


def run_weir(*arguments: str, stdin: bytes = b"", **variables: str) -> subprocess.CompletedProcess[bytes]:
    """Run a command to its end."""
    return subprocess.run(
        [*WEIR, *arguments],
        input=stdin,
        capture_output=True,
        cwd=ROOT,
        env=environment(**variables),
        timeout=LIMIT_SECONDS,
        check=False,
    )


@contextmanager
def started(*arguments: str, **variables: str) -> Iterator[WeirProcess]:
    """Run a command that serves until the block ends."""
    process = subprocess.Popen(
        [*WEIR, *arguments],
        cwd=ROOT,
        env=environment(**variables),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    running = WeirProcess(process, Path(os.devnull))
    try:
        running.wait_until_announced()
        yield running
    finally:
        running.close()
