"""`make bench-lanes`: what the coalesce lane does for bursts and costs idle traffic.

    python -m tests.perf.lanes [--json] [--only inputs|chats]

Figures are counts, and ratios or differences within one run: absolute times belong to the machine. Counts are
also held by tests of `make test`; what a bound says about time is printed here and held by nobody.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict

from tests.perf import lanes_chats, lanes_inputs
from tests.perf.lanes_chats import Figure

MEASUREMENTS: Mapping[str, Callable[[], Iterator[Figure]]] = {
    "inputs": lanes_inputs.figures,
    "chats": lanes_chats.figures,
}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="make bench-lanes")
    parser.add_argument("--json", action="store_true", help="for machines")
    parser.add_argument("--only", choices=tuple(MEASUREMENTS), help="one of the measurements")
    options = parser.parse_args()
    for name, measure in MEASUREMENTS.items():
        if options.only not in (None, name):
            continue
        for figure in measure():
            if options.json:
                print(json.dumps(asdict(figure)), flush=True)
            else:
                mark = "" if figure.is_met else "  NOT MET"
                print(f"{figure.what:<84}{figure.value:>28}  {figure.bound}{mark}", flush=True)


if __name__ == "__main__":
    main()
