"""Runs a program of this folder again and again in one process, so that its packages are imported once.

    python again.py PROGRAM SERVER

Each line of standard input is a JSON object of environment variables: they are set, and the program is run
from its first line on, as if it had been started with them. What it prints ends with the line `again`.
"""

from __future__ import annotations

import json
import os
import runpy
import sys
from pathlib import Path


def main() -> None:
    """Run the program for each line."""
    program, server = sys.argv[1:]
    sys.argv = [program, server]
    for line in sys.stdin:
        os.environ.update(json.loads(line))
        runpy.run_path(str(Path(__file__).with_name(program)), run_name="__main__")
        print("\nagain", flush=True)


if __name__ == "__main__":
    main()
