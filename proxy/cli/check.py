"""`weir check`: validate policies."""

from __future__ import annotations

import argparse
import os
import sys

import orjson

from proxy.cli.arguments import Subcommands, add_allow_missing, counted
from proxy.policy.findings import Finding, Severity
from proxy.policy.load import check


def add_to(commands: Subcommands) -> None:
    """Add the command to a parser."""
    parser = commands.add_parser("check", help="validate policies", description="Validate policy files.")
    parser.add_argument("paths", nargs="+", metavar="PATH", help="policy file or directory")
    parser.add_argument("--json", action="store_true", help="print findings as JSON")
    add_allow_missing(parser)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Print findings; 1 if any is an error."""
    findings = check(options.paths, dict(os.environ), allow_missing=options.allow_missing_env)
    errors = sum(1 for finding in findings if finding.severity is Severity.ERROR)
    if options.json:
        sys.stdout.buffer.write(
            orjson.dumps([_row(finding) for finding in findings], option=orjson.OPT_APPEND_NEWLINE)
        )
    else:
        for finding in findings:
            print(finding)
        warnings = len(findings) - errors
        sums = f"{counted(errors, 'error')}, {counted(warnings, 'warning')}"
        print(f"weir check: {sums}" if findings else "weir check: good")
    return 1 if errors else 0


def _row(finding: Finding) -> dict[str, object]:
    return {
        "file": finding.file,
        "line": finding.line,
        "column": finding.column,
        "path": finding.path,
        "problem": finding.problem,
        "hint": finding.hint,
        "severity": finding.severity.value,
    }
