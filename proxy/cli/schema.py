"""`weir schema`: print the JSON Schema of policies."""

from __future__ import annotations

import argparse
import sys

from proxy.cli.arguments import Subcommands
from proxy.policy.schema import schema_text


def add_to(commands: Subcommands) -> None:
    """Add the command to a parser."""
    parser = commands.add_parser("schema", help="print the JSON Schema of policies")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Print the schema."""
    sys.stdout.write(schema_text())
    return 0
