"""`make soak-jobs`: many jobs through killed workers, a restarted store and a failing provider."""

from __future__ import annotations

import argparse
import os

from tests.support.soak_jobs import Plan, soak


def main() -> None:
    parser = argparse.ArgumentParser(prog="make soak-jobs", description=__doc__)
    parser.add_argument("--jobs", type=int, default=10_000)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument(
        "--seconds", type=float, default=1200.0, help="most time, which is every job's deadline"
    )
    parser.add_argument("--kill-every", type=float, default=8.0, help="mean life of a worker, in seconds")
    parser.add_argument(
        "--restart-every", type=float, default=20.0, help="seconds between restarts of the store"
    )
    parser.add_argument("--seed", type=int, default=int.from_bytes(os.urandom(3), "big"))
    options = parser.parse_args()
    print(f"seed {options.seed}")
    report = soak(
        Plan(
            jobs=options.jobs,
            workers=options.workers,
            kill_every_seconds=options.kill_every,
            restart_every_seconds=options.restart_every,
            seconds=options.seconds,
            seed=options.seed,
        )
    )
    print("\n".join(report.lines()))


if __name__ == "__main__":
    main()
