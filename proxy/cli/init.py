"""`weir init`: write a commented starter policy."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from proxy.cli.arguments import Subcommands, usage_error
from proxy.policy.starter import STARTER_POLICY


def add_to(commands: Subcommands) -> None:
    """Add the command to a parser."""
    parser = commands.add_parser("init", help="write a commented starter policy, weir.yaml")
    parser.add_argument(
        "path",
        nargs="?",
        default="weir.yaml",
        metavar="PATH",
        help="file to write (default weir.yaml), - to print",
    )
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Write the policy; never over an existing file."""
    if options.path == "-":
        sys.stdout.write(STARTER_POLICY)
        return 0
    try:
        with Path(options.path).open("x", encoding="utf-8") as file:
            file.write(STARTER_POLICY)
    except FileExistsError:
        return usage_error("init", f"{options.path} exists already")
    except OSError as problem:
        return usage_error("init", f"{options.path}: {problem.strerror}")
    print(f"weir init: wrote {options.path}; next: weir check {options.path}")
    return 0
