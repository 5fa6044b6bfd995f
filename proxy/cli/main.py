"""The `weir` command. Exit status: 0 good, 1 findings, 2 usage."""

from __future__ import annotations

import argparse
import importlib
import os
import signal
import sys
from collections.abc import Sequence

from proxy import __version__

COMMANDS = ("serve", "worker", "jobs", "check", "explain", "schema", "init", "simulate")


def build_parser(asked: str | None = None) -> argparse.ArgumentParser:
    """Return the parser of all commands, or of the one that is asked for: to read all takes a second."""
    parser = argparse.ArgumentParser(
        prog="weir", description="A transparent optimizing proxy for OpenAI-compatible APIs."
    )
    parser.add_argument("--version", action="version", version=f"weir {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    if asked == "--version":
        return parser
    for name in (asked,) if asked in COMMANDS else COMMANDS:
        importlib.import_module(f"proxy.cli.{name}").add_to(commands)
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return its exit status."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    if given[:1] == ["serve"]:
        # Until there is a handler it would end the process; blocked, the system remembers it.
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGHUP})
    options = build_parser(given[0] if given else None).parse_args(given)
    try:
        status: int = options.run(options)
        sys.stdout.flush()
    except BrokenPipeError:
        # The reader of our output left (as `head` does): not a failure of the command.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except KeyboardInterrupt:
        return 130
    return status


if __name__ == "__main__":
    sys.exit(main())
