"""Argument types that several commands share, and how usage errors look."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from proxy.edge.listener import parse_listen
from proxy.jobs.opening import DEFAULT, check_store
from proxy.policy.values import duration_seconds, size_bytes
from proxy.upstream.providers.prices import load_prices

if TYPE_CHECKING:
    Subcommands: TypeAlias = argparse._SubParsersAction[argparse.ArgumentParser]
else:
    Subcommands = object

LOG_FORMATS = ("json", "text")
PRICES_HELP = "file of prices and tiers that count before the shipped ones"


def duration(text: str) -> float:
    """Read a duration such as `5s`."""
    try:
        seconds = duration_seconds(text)
    except ValueError as problem:
        raise argparse.ArgumentTypeError(str(problem)) from None
    if seconds is None:
        raise argparse.ArgumentTypeError("off is not possible here")
    return seconds


def size(text: str) -> int:
    """Read a size such as `64KiB`."""
    try:
        return size_bytes(text)
    except ValueError as problem:
        raise argparse.ArgumentTypeError(str(problem)) from None


def _whole_number(what: str, most: int) -> Callable[[str], int]:
    """Return what reads a number of such things, from 1 to `most`."""

    def read(text: str) -> int:
        if not text.isdecimal() or not 1 <= int(text) <= most:
            raise argparse.ArgumentTypeError(f"{text!r} is not a number of {what} from 1 to {most}")
        return int(text)

    return read


worker_count = _whole_number("processes", 256)
upload_count = _whole_number("uploads", 10_000)


def listen_address(text: str) -> str:
    """Check an address to listen on."""
    try:
        parse_listen(text)
    except ValueError as problem:
        raise argparse.ArgumentTypeError(str(problem)) from None
    return text


def admin_address(text: str) -> str:
    """Check an address to listen on, or `off`."""
    return text if text == "off" else listen_address(text)


def log_format(text: str) -> str:
    """Read the format of the access log. argparse checks `choices` of flags only, not of the environment."""
    if text not in LOG_FORMATS:
        raise argparse.ArgumentTypeError(f"{text!r} is not one of {', '.join(LOG_FORMATS)}")
    return text


def add_allow_missing(parser: argparse.ArgumentParser) -> None:
    """Add `--allow-missing-env` to the parser of a command that reads policies without serving them."""
    parser.add_argument(
        "--allow-missing-env",
        action="store_true",
        help="for CI: placeholders stand for missing ${NAME} and ${file:...}, each with a warning",
    )


def store_setting(text: str) -> str:
    """Check the name of a job store, or `off`."""
    if text == "off":
        return text
    try:
        return check_store(text)
    except ValueError as problem:
        raise argparse.ArgumentTypeError(str(problem)) from None


def add_store(option: Callable[..., None], duration_option: Callable[[str, str, str], None]) -> None:
    """Add the flags about where jobs are kept; `option` and `duration_option` add one flag each."""
    option(
        "--store",
        f"where jobs and batches are kept (default: {DEFAULT} if a route defers or an upstream is served)",
        type=store_setting,
        metavar="sqlite:PATH|redis://...|off",
    )
    duration_option(
        "--job-retention", "job_retention_seconds", "a job stays so long after its end (default 24h)"
    )
    option("--prices", PRICES_HELP, type=price_file, metavar="FILE")


def price_file(text: str) -> str:
    """Check a file of prices: a wrong price is worse than none."""
    try:
        load_prices(own=Path(text))
    except OSError as problem:
        raise argparse.ArgumentTypeError(f"{text}: {problem.strerror}") from None
    except ValueError as problem:
        raise argparse.ArgumentTypeError(str(problem)) from None
    return text


def counted(number: int, what: str) -> str:
    """Return `1 error`, `2 errors`."""
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def usage_error(command: str, message: str) -> int:
    """Print what is wrong with how a command was called; return its exit status."""
    print(f"weir {command}: {message}", file=sys.stderr)
    return 2
