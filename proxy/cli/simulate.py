"""`weir simulate`: run the simulated provider."""

from __future__ import annotations

import argparse
import asyncio
import signal

import uvloop

from proxy.cli.arguments import Subcommands, listen_address, usage_error
from proxy.sim.scenario import Scenario, ScenarioError, load_scenario
from proxy.sim.server import serve


def add_to(commands: Subcommands) -> None:
    """Add the command to a parser."""
    parser = commands.add_parser("simulate", help="run a simulated provider")
    parser.add_argument(
        "--listen",
        type=listen_address,
        default="127.0.0.1:9000",
        metavar="HOST:PORT|unix:PATH",
        help="where callers connect (default 127.0.0.1:9000)",
    )
    parser.add_argument(
        "--scenario", metavar="FILE", help="timing, cache, limits and faults (docs/simulator.md)"
    )
    parser.add_argument(
        "--state",
        metavar="FILE",
        help="keep files, batches, stored responses and counters here, so that they outlive the process",
    )
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Serve until a signal."""
    try:
        scenario = load_scenario(options.scenario) if options.scenario else Scenario()
        uvloop.run(_serve(options.listen, scenario, options.state))
    except (OSError, ScenarioError, ValueError) as problem:
        return usage_error("simulate", str(problem))
    return 0


async def _serve(listen: str, scenario: Scenario, state: str | None) -> None:
    loop = asyncio.get_running_loop()

    def announce(url: str) -> None:
        print(f"weir simulate: listening on {url}", flush=True)

    serving = serve(listen, scenario, announce, state=state)
    task = loop.create_task(serving, name="simulated provider")
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, task.cancel)
    try:
        await task
    except asyncio.CancelledError:
        return
