"""`weir serve`: run the proxy."""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import sys
from dataclasses import replace
from typing import Any

import uvloop

from proxy import app
from proxy.cli.arguments import Subcommands, duration, listen_address, size, usage_error
from proxy.policy.findings import PolicyErrors
from proxy.settings import Settings, default_upstream
from proxy.sim.scenario import Scenario
from proxy.sim.server import serve as simulate_provider

def add_to(commands: Subcommands) -> None:
    """Add the command to a parser."""
    parser = commands.add_parser("serve", help="run the proxy")
    defaults = Settings()
    option = parser.add_argument
    option("--policies", action="append", default=[], metavar="PATH", help="policy file or directory (repeatable)")
    option("--listen", type=listen_address, metavar="HOST:PORT|unix:PATH", help=f"default {defaults.listen}")
    option("--admin", type=listen_address, metavar="HOST:PORT|off", help=f"admin API, default {defaults.admin}")
    option("--workers", type=int, metavar="N", help="processes that share the port (default 1)")
    option("--access-log", metavar="PATH|-|off", help="one JSON line per exchange (default -: standard output)")
    option("--log-format", choices=("json", "text"), help="format of the access log (default json)")
    option("--demo", action="store_true", help="without an upstream, answer from an embedded simulated provider")
    option("--tls-certificate", metavar="FILE", help="serve TLS with this certificate chain")
    option("--tls-key", metavar="FILE", help="the certificate's key, if not in the same file")
    option("--tls-client-ca", metavar="FILE", help="require client certificates signed by this CA")
    option("--drain-delay", type=duration, dest="drain_delay_seconds", metavar="DURATION",
           help="after SIGTERM, keep accepting this long (default 0s)")  # fmt: skip
    option("--drain-timeout", type=duration, dest="drain_timeout_seconds", metavar="DURATION",
           help="then let requests in progress end within this (default 30s)")  # fmt: skip
    option("--max-head", type=size, dest="head_bytes", metavar="SIZE", help="request line and headers (default 64KiB)")
    option("--header-timeout", type=duration, dest="header_seconds", metavar="DURATION", help="default 30s")
    option("--body-timeout", type=duration, dest="body_seconds", metavar="DURATION",
           help="between two reads of a request body (default 60s)")  # fmt: skip
    option("--keep-alive", type=duration, dest="keep_alive_seconds", metavar="DURATION", help="default 75s")
    option("--write-stall", type=duration, dest="write_stall_seconds", metavar="DURATION",
           help="drop a caller that reads nothing for this long (default 30s)")  # fmt: skip
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Serve until a signal."""
    environment = dict(os.environ)
    settings = _settings(options, environment)
    logging.basicConfig(
        stream=sys.stderr, level=logging.INFO, format="%(asctime)s weir: %(levelname)s: %(message)s"
    )
    try:
        uvloop.run(_serve(settings, environment, options.demo))
    except PolicyErrors as errors:
        print(errors, file=sys.stderr)
        return 1
    except (OSError, ValueError) as problem:
        return usage_error("serve", str(problem))
    return 0


def _settings(options: argparse.Namespace, environment: dict[str, str]) -> Settings:
    """Combine flags, `WEIR_*` variables and defaults, in this order of precedence."""
    upstream_url, upstream_key = default_upstream(environment)
    given: dict[str, Any] = {
        name: value for name in Settings.__dataclass_fields__ if (value := getattr(options, name, None)) is not None
    }
    given["policies"] = tuple(options.policies)
    return Settings(**{"upstream_url": upstream_url, "upstream_key": upstream_key} | given)


async def _serve(settings: Settings, environment: dict[str, str], is_demo: bool) -> None:
    """Load and serve; with `is_demo` and no upstream, start the simulated provider first."""
    simulator: asyncio.Task[None] | None = None
    if is_demo and settings.upstream_url is None:
        simulator, url = await _start_simulator()
        settings = replace(settings, upstream_url=f"{url}/v1")
        print(f"weir: no upstream configured: the simulated provider answers, on {url}", flush=True)
    try:
        policies = app.load_policies(settings, environment)
        await app.serve(settings, environment, policies, lambda line: print(line, flush=True))
    finally:
        if simulator is not None:
            simulator.cancel()
            await asyncio.gather(simulator, return_exceptions=True)


async def _start_simulator() -> tuple[asyncio.Task[None], str]:
    loop = asyncio.get_running_loop()
    url: asyncio.Future[str] = loop.create_future()
    simulator = loop.create_task(simulate_provider("127.0.0.1:0", Scenario(), url.set_result), name="simulator")
    return simulator, await url
