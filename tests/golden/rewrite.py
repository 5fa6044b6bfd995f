"""Write the `expect` of golden cases anew from what Weir does now (`make golden`); read the diff afterwards.

Only what follows the line `expect:` is replaced, so that the rest of a file keeps its layout and comments.
"""

from __future__ import annotations

import re
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from tests.golden.case import case_files, read_case, run_case

_EXPECT = re.compile(r"^expect:", re.MULTILINE)


class _Dumper(yaml.SafeDumper):
    """Block style outside, flow style for small mappings, multi-line and JSON text as literal blocks."""


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    style = "|" if text.startswith(("{", "[")) else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style)


def _mapping(dumper: yaml.SafeDumper, values: dict[str, Any]) -> yaml.MappingNode:
    is_flat = not {"steps", "body", "rejected", "expect"} & values.keys()
    return dumper.represent_mapping("tag:yaml.org,2002:map", values, flow_style=is_flat)


_Dumper.add_representer(str, _text)
_Dumper.add_representer(dict, _mapping)


def rewritten(source: str, expect: dict[str, Any]) -> str:
    """Return a case's text with another expectation."""
    found = _EXPECT.search(source)
    kept = source[: found.start()] if found is not None else source.rstrip("\n") + "\n"
    written = yaml.dump(
        {"expect": expect}, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=1_000_000, indent=2
    )
    return kept + written


def main(patterns: Sequence[str]) -> int:
    """Rewrite the cases whose names match one of the `*` patterns, or all of them."""
    changed = 0
    with tempfile.TemporaryDirectory() as folder:
        for file in case_files():
            if patterns and not any(Path(file.stem).match(pattern) for pattern in patterns):
                continue
            case = read_case(file)
            text = rewritten(case.source, run_case(case, Path(folder)))
            if text != case.source:
                changed += 1
                file.write_text(text, encoding="utf-8")
                sys.stderr.write(f"golden: {file.name} rewritten\n")
    sys.stderr.write(f"golden: {changed} changed\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
