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
from proxy.cli.arguments import (
    LOG_FORMATS,
    Subcommands,
    add_store,
    admin_address,
    duration,
    listen_address,
    log_format,
    size,
    upload_count,
    usage_error,
    worker_count,
)
from proxy.policy.builtin import PLACEHOLDER
from proxy.policy.findings import PolicyErrors
from proxy.policy.load import load
from proxy.settings import Settings, default_upstream
from proxy.supervisor import Supervisor

_NO_UPSTREAM = (
    "weir serve: WEIR_UPSTREAM and OPENAI_API_KEY are not set: policies must define upstreams "
    "(or try Weir with the simulated provider: --demo)"
)


def add_to(commands: Subcommands) -> None:
    """Add the command to a parser. `WEIR_ACCESS_LOG` stands for `--access-log`, and so on."""
    parser = commands.add_parser(
        "serve",
        help="run the proxy",
        epilog="Each option may also be set by the environment: --access-log by WEIR_ACCESS_LOG, and so on; "
        f"several --policies by one WEIR_POLICIES with {os.pathsep!r} between them.",
    )

    def option(flag: str, text: str, **details: Any) -> None:
        variable = "WEIR_" + flag.removeprefix("--").upper().replace("-", "_")
        parser.add_argument(flag, help=text, default=os.environ.get(variable) or None, **details)

    def duration_option(flag: str, name: str, text: str) -> None:
        option(flag, text, type=duration, dest=name, metavar="DURATION")

    defaults = Settings()
    parser.add_argument(
        "--policies", action="append", metavar="PATH", help="policy file or directory (repeatable)"
    )
    parser.add_argument(
        "--demo", action="store_true", help="without an upstream, answer from an embedded simulated provider"
    )
    where = "HOST:PORT|unix:PATH"
    option(
        "--listen", f"where callers connect, default {defaults.listen}", type=listen_address, metavar=where
    )
    option(
        "--admin", f"admin API or off, default {defaults.admin}", type=admin_address, metavar=f"{where}|off"
    )
    option("--workers", "processes that share the port (default 1)", type=worker_count, metavar="N")
    option("--access-log", "one line per exchange (default -: standard output)", metavar="PATH|-|off")
    option("--log-format", "of the access log (default json)", type=log_format, metavar="|".join(LOG_FORMATS))
    option("--tls-certificate", "serve TLS with this certificate chain", metavar="FILE")
    option("--tls-key", "the certificate's key, if not in the same file", metavar="FILE")
    option("--tls-client-ca", "require client certificates signed by this CA", metavar="FILE")
    duration_option(
        "--drain-delay", "drain_delay_seconds", "after SIGTERM, keep accepting this long (default 0s)"
    )
    duration_option(
        "--drain-timeout", "drain_timeout_seconds", "then let requests end within this (default 30s)"
    )
    add_store(option, duration_option)
    for flag, name, text in (
        ("--max-head", "head_bytes", "request line and headers (default 64KiB)"),
        (
            "--max-upstream-head",
            "upstream_head_bytes",
            "an answer's status line and headers (default 128KiB)",
        ),
    ):
        option(flag, text, type=size, dest=name, metavar="SIZE")
    duration_option("--header-timeout", "header_seconds", "for a request's head (default 30s)")
    duration_option("--body-timeout", "body_seconds", "between two reads of a body (default 60s)")
    duration_option("--keep-alive", "keep_alive_seconds", "between two requests (default 75s)")
    duration_option("--write-stall", "write_stall_seconds", "for a caller that reads nothing (default 30s)")
    option("--uploads-at-once", "to the own batch API (default 32)", type=upload_count, metavar="N")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Serve until a signal."""
    environment = dict(os.environ)
    settings = _settings(options, environment)
    if settings.tls_certificate is None and (settings.tls_key or settings.tls_client_ca):
        # Serving plain HTTP all the same would leave open what was meant to be closed.
        return usage_error("serve", "--tls-key and --tls-client-ca need --tls-certificate")
    logging.basicConfig(
        stream=sys.stderr, level=logging.INFO, format="%(asctime)s weir: %(levelname)s: %(message)s"
    )
    try:
        uvloop.run(_serve(settings, environment, options.demo))
    except PolicyErrors as errors:
        print(errors, file=sys.stderr)
        if any(finding.path == "upstreams" for finding in errors.findings) and settings.upstream_url is None:
            print(_NO_UPSTREAM, file=sys.stderr)
        return 1
    except (OSError, ValueError) as problem:
        return usage_error("serve", str(problem))
    return 0


def _settings(options: argparse.Namespace, environment: dict[str, str]) -> Settings:
    """Combine flags, `WEIR_*` variables and defaults, in this order of precedence."""
    upstream_url, upstream_key = default_upstream(environment)
    secret_key = environment.get("WEIR_SECRET_KEY") or None
    given: dict[str, Any] = {
        name: value
        for name in Settings.__dataclass_fields__
        if (value := getattr(options, name, None)) is not None
    }
    listed = environment.get("WEIR_POLICIES", "").split(os.pathsep)
    given["policies"] = tuple(options.policies or filter(None, listed))
    outside = {"upstream_url": upstream_url, "upstream_key": upstream_key, "secret_key": secret_key}
    return Settings(**outside | given)


async def _serve(settings: Settings, environment: dict[str, str], is_demo: bool) -> None:
    """Load and serve; with `is_demo` and no upstream anywhere, start the simulated provider first."""
    simulator: asyncio.Task[None] | None = None
    if is_demo and settings.upstream_url is None and _lacks_upstream(settings, environment):
        simulator, url = await _start_simulator()
        settings = replace(settings, upstream_url=f"{url}/v1")
        print(f"weir: no upstream configured: the simulated provider answers, on {url}", flush=True)
    try:
        if settings.workers > 1:
            await Supervisor(settings, environment).run(_announce)
        else:
            policies = app.load_policies(settings, environment)
            await app.serve(settings, environment, policies, _announce)
    finally:
        if simulator is not None:
            simulator.cancel()
            await asyncio.gather(simulator, return_exceptions=True)


def _announce(line: str) -> None:
    print(line, flush=True)


def _lacks_upstream(settings: Settings, environment: dict[str, str]) -> bool:
    """Tell whether the policies leave it to somebody else to name an upstream. Raises PolicyErrors."""
    policies = load(settings.policies, environment, PLACEHOLDER)
    return PLACEHOLDER in policies.upstreams.values()


async def _start_simulator() -> tuple[asyncio.Task[None], str]:
    # Few want it, and everybody's start would wait for it.
    from proxy.sim.scenario import Scenario
    from proxy.sim.server import serve as simulate_provider

    loop = asyncio.get_running_loop()
    url: asyncio.Future[str] = loop.create_future()
    simulator = loop.create_task(
        simulate_provider("127.0.0.1:0", Scenario(), url.set_result), name="simulator"
    )
    return simulator, await url
