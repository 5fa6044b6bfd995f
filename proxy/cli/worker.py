"""`weir worker`: work on deferred jobs and on batches, and serve nobody."""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import sys
from typing import Any

import uvloop

from proxy import app
from proxy.cli.arguments import Subcommands, add_store, admin_address, duration, usage_error
from proxy.deferred_work import keeping
from proxy.policy.findings import PolicyErrors
from proxy.settings import Settings, default_upstream


def add_to(commands: Subcommands) -> None:
    """Add the command to a parser."""
    parser = commands.add_parser(
        "worker",
        help="work on deferred jobs and batches without serving callers",
        epilog="Each option may also be set by the environment: --store by WEIR_STORE, and so on.",
    )
    parser.add_argument(
        "--policies", action="append", metavar="PATH", help="policy file or directory (repeatable)"
    )

    def option(flag: str, text: str, **details: Any) -> None:
        variable = "WEIR_" + flag.removeprefix("--").upper().replace("-", "_")
        parser.add_argument(flag, help=text, default=os.environ.get(variable) or None, **details)

    def duration_option(flag: str, name: str, text: str) -> None:
        option(flag, text, type=duration, dest=name, metavar="DURATION")

    option(
        "--admin",
        "probes, metrics and jobs (default off)",
        type=admin_address,
        metavar="HOST:PORT|unix:PATH|off",
    )
    add_store(option, duration_option)
    duration_option(
        "--drain-timeout", "drain_timeout_seconds", "after SIGTERM, let calls end within this (default 30s)"
    )
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Work until a signal."""
    environment = dict(os.environ)
    url, key = default_upstream(environment)
    given: dict[str, Any] = {
        name: value
        for name in ("store", "job_retention_seconds", "prices", "drain_timeout_seconds")
        if (value := getattr(options, name)) is not None
    }
    listed = environment.get("WEIR_POLICIES", "").split(os.pathsep)
    settings = Settings(
        policies=tuple(options.policies or filter(None, listed)),
        listen="off",
        admin=options.admin or "off",
        access_log="off",
        upstream_url=url,
        upstream_key=key,
        secret_key=environment.get("WEIR_SECRET_KEY") or None,
        **given,
    )
    logging.basicConfig(
        stream=sys.stderr, level=logging.INFO, format="%(asctime)s weir: %(levelname)s: %(message)s"
    )
    try:
        return uvloop.run(_work(settings, environment))
    except PolicyErrors as errors:
        print(errors, file=sys.stderr)
        return 1
    except (OSError, ValueError) as problem:
        return usage_error("worker", str(problem))


async def _work(settings: Settings, environment: dict[str, str]) -> int:
    policies = await asyncio.to_thread(app.load_policies, settings, environment)
    if keeping(settings, policies) is None:
        reason = "no route has a batch section, no upstream is served batches and no --store is named"
        return usage_error("worker", f"{reason}: nothing to do")
    await app.serve(settings, environment, policies, lambda line: print(line, flush=True))
    return 0
