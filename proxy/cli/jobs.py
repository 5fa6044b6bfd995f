"""`weir jobs list|show|cancel|retry|delete`: what operators do about deferred jobs.

Asks the admin API of a running process, which also cancels what a provider still works on. With `--store` the
store is asked itself: for when nothing runs.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Awaitable, Callable
from typing import Any

from proxy.cli.arguments import Subcommands, counted, store_setting, usage_error
from proxy.cli.table import table
from proxy.core.clock import SystemClock
from proxy.edge.admin_jobs import limit_from, states_from
from proxy.jobs.inspection import DEFAULT_LIMIT, Inspector, NoSuchJob
from proxy.jobs.opening import make_store, sqlite_path
from proxy.jobs.sealing import SealError, vault_from
from proxy.jobs.store import StoreError
from proxy.settings import Settings

_TIMEOUT_SECONDS = 30.0
_COLUMNS = ("id", "state", "tier", "route", "model", "age", "margin", "error")
_ACTS = ("show", "cancel", "retry", "delete")


class _Refused(Exception):
    """The job or the process said no; the message is for people."""


def add_to(commands: Subcommands) -> None:
    """Add the command to a parser."""
    parser = commands.add_parser("jobs", help="list, show, cancel and retry deferred jobs")
    acts = parser.add_subparsers(dest="act", metavar="ACT", required=True)
    listing = acts.add_parser("list", help="jobs, newest first")
    listing.add_argument("--state", metavar="STATE[,STATE]", help="only jobs in these states")
    listing.add_argument("--upstream", metavar="NAME", help="only jobs of this upstream")
    listing.add_argument("--limit", default=str(DEFAULT_LIMIT), metavar="N", help=f"default {DEFAULT_LIMIT}")
    listing.add_argument("--after", metavar="CURSOR", help="the next page: what the page before ended with")
    for act, text in zip(
        _ACTS,
        (
            "one job, with its bookings and its batch",
            "end a job that has not ended",
            "try a failed, expired or cancelled job again",
            "erase every trace of a job",
        ),
        strict=True,
    ):
        acts.add_parser(act, help=text).add_argument("id", metavar="ID")
    for each in acts.choices.values():
        each.add_argument("--json", action="store_true", help="print one JSON object")
        where = each.add_mutually_exclusive_group()
        where.add_argument(
            "--admin",
            default=os.environ.get("WEIR_ADMIN") or Settings().admin,
            metavar="HOST:PORT",
            help=f"admin API of a running process (default {Settings().admin})",
        )
        where.add_argument("--store", type=store_setting, metavar="STORE", help="ask this store itself")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Do one act; 1 if the job or the process says no."""
    try:
        said = _by_store(options) if options.store is not None else _by_admin(options)
    except _Refused as refusal:
        print(f"weir jobs: {refusal}", file=sys.stderr)
        return 1
    except (ValueError, OSError, SealError) as problem:
        return usage_error("jobs", str(problem))
    if options.json:
        print(json.dumps(said))
    elif options.act == "list":
        _print_list(said)
    else:
        for name, value in said.items():
            print(f"{name:15} {value if isinstance(value, str) else json.dumps(value)}")
    return 0


# ---- by the admin API of a running process


def _by_admin(options: argparse.Namespace) -> dict[str, Any]:
    method, path = "GET", "/jobs"
    if options.act == "list":
        asked = {"state": options.state, "upstream": options.upstream, "limit": options.limit}
        given = {name: value for name, value in (asked | {"after": options.after}).items() if value}
        path += "?" + urllib.parse.urlencode(given)
    else:
        path += "/" + urllib.parse.quote(options.id, safe="")
        if options.act == "delete":
            method = "DELETE"
        elif options.act != "show":
            method, path = "POST", f"{path}/{options.act}"
    base = options.admin if "://" in options.admin else f"http://{options.admin}"
    request = urllib.request.Request(base + path, method=method)
    try:
        # Never by a forward proxy: the admin API is near.
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(request, timeout=_TIMEOUT_SECONDS) as answer:
            said: dict[str, Any] = json.load(answer)
            return said
    except urllib.error.HTTPError as error:
        raise _Refused(_message(error)) from None
    except urllib.error.URLError as error:
        hint = "is weir running? with --store the store is asked itself"
        raise _Refused(f"no answer from {base}: {error.reason} ({hint})") from None


def _message(error: urllib.error.HTTPError) -> str:
    try:
        message: str = json.load(error)["error"]["message"]
    except (ValueError, KeyError, TypeError):
        return f"the admin API answered {error.code}"
    return message


# ---- by the store itself


def _by_store(options: argparse.Namespace) -> dict[str, Any]:
    try:
        return asyncio.run(_ask_store(options))
    except NoSuchJob:
        raise _Refused("there is no such job") from None
    except StoreError as problem:
        raise _Refused(str(problem)) from None


async def _ask_store(options: argparse.Namespace) -> dict[str, Any]:
    path = sqlite_path(options.store)
    if path is not None and not path.exists():
        # Opening makes it, and an empty store looks as if every job were lost.
        raise _Refused(f"there is no job store {path}")
    clock = SystemClock()
    vault = vault_from(os.environ.get("WEIR_SECRET_KEY"))
    store = make_store(options.store, clock, Settings().job_retention_seconds, vault)
    await store.open()
    try:
        jobs = Inspector(store, clock.wall)
        acts: dict[str, Callable[[str], Awaitable[dict[str, Any]]]] = {
            "show": jobs.shown,
            "cancel": jobs.cancelled,
            "retry": jobs.retried,
        }
        if options.act == "list":
            states = states_from(options.state) if options.state else None
            return await jobs.listed(states, options.upstream, limit_from(options.limit), options.after)
        if options.act == "delete":
            if not await jobs.deleted(options.id):
                raise NoSuchJob(options.id)
            return {"id": options.id, "deleted": True}
        return await acts[options.act](options.id)
    finally:
        await store.close()


# ---- printing


def _print_list(said: dict[str, Any]) -> None:
    rows = [
        (
            job["id"],
            job["state"],
            job["tier"],
            job["route"],
            job["model"],
            _span(job["age_seconds"]),
            _span(job["margin_seconds"]),
            "" if job["error"] is None else job["error"]["code"],
        )
        for job in said["jobs"]
    ]
    print(table(_COLUMNS, rows))
    by_state = ", ".join(f"{count} {state}" for state, count in said["by_state"].items() if count)
    print(f"{counted(sum(said['by_state'].values()), 'job')} in all" + (f": {by_state}" if by_state else ""))
    if said["next"] is not None:
        print(f"more: --after {said['next']}")


def _span(seconds: float) -> str:
    sign, seconds = ("-", -seconds) if seconds < 0 else ("", seconds)
    for unit, length in (("d", 86_400), ("h", 3_600), ("m", 60)):
        if seconds >= 2 * length:
            return f"{sign}{seconds / length:.0f}{unit}"
    return f"{sign}{seconds:.0f}s"
