"""`weir explain`: what would happen to a request, or to a file of them, without calling anyone."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import orjson

from proxy.cli.arguments import PRICES_HELP, Subcommands, add_allow_missing, price_file, usage_error
from proxy.cli.corpus_text import corpus_text
from proxy.core.clock import ManualClock, SystemClock
from proxy.core.errors import ProxyError
from proxy.core.stages import Trace
from proxy.edge.request_target import matched_path
from proxy.explanation import explain_request, explanation, rejection, sent_body
from proxy.explanation.body_diff import body_diff
from proxy.explanation.corpus import Corpus
from proxy.explanation.corpus_lines import read_requests
from proxy.lanes.batch.deferring import Deferring
from proxy.lanes.batch.pace import Pace
from proxy.observe.prefixes import PrefixMemory
from proxy.pipeline import Decision, Pipeline, Request
from proxy.policy.builtin import PLACEHOLDER, builtin_upstream
from proxy.policy.findings import PolicyErrors
from proxy.policy.lane import LaneCapabilities
from proxy.policy.load import read
from proxy.settings import default_upstream
from proxy.tokens.counter import TokenCounter
from proxy.tokens.vocabulary import Vocabularies
from proxy.upstream.providers.prices import load_prices

_EPILOG = (
    "REQUEST.jsonl (or --jsonl) holds one request a line: a bare body, {path, headers, body}, or a line of "
    "an OpenAI batch file. Then the sums over all of them are printed."
)


def add_to(commands: Subcommands) -> None:
    """Add the command to a parser."""
    parser = commands.add_parser("explain", help="show what would happen to requests", epilog=_EPILOG)
    parser.add_argument(
        "--policies",
        action="append",
        required=True,
        metavar="PATH",
        help="policy file or directory (repeatable)",
    )
    add_allow_missing(parser)
    parser.add_argument(
        "--path", default="/v1/chat/completions", help="request path (default /v1/chat/completions)"
    )
    parser.add_argument("--method", default="POST", help="request method (default POST)")
    parser.add_argument(
        "--header", action="append", default=[], metavar="'NAME: VALUE'", help="request header"
    )
    parser.add_argument(
        "--prices",
        help=f"{PRICES_HELP} (default WEIR_PRICES)",
        type=price_file,
        metavar="FILE",
        default=os.environ.get("WEIR_PRICES") or None,
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--jsonl", action="store_true", help="read one request a line, whatever the name")
    parser.add_argument(
        "request",
        metavar="REQUEST.json|.jsonl|-",
        help="the request's body or a file of requests, - for stdin",
    )
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Explain; 1 if the policies cannot be used or refuse the request, or a line cannot be read."""
    try:
        headers = _headers(options.header)
        path = matched_path(options.path.encode("utf-8"))
    except (ProxyError, ValueError) as problem:
        return usage_error("explain", str(problem))
    try:
        pipeline = _pipeline(options, dict(os.environ))
    except PolicyErrors as errors:
        print(errors, file=sys.stderr)
        return 1
    explain = _sum_up if options.jsonl or options.request.endswith(".jsonl") else _explain_one
    asked = Request(options.method.upper(), path, headers.get, b"")
    try:
        if options.request == "-":
            return explain(options, pipeline, asked, sys.stdin.buffer)
        with Path(options.request).open("rb") as file:
            return explain(options, pipeline, asked, file)
    except OSError as problem:
        return usage_error("explain", f"{options.request}: {problem.strerror}")


def _pipeline(options: argparse.Namespace, environment: dict[str, str]) -> Pipeline:
    """Return what `weir serve` would decide with; time stands still, so that a file's prefixes stay warm.

    Raises `PolicyErrors`.
    """
    url, _ = default_upstream(environment)
    fallback = builtin_upstream(url) if url else PLACEHOLDER
    reading = read(options.policies, environment, fallback, allow_missing=options.allow_missing_env)
    if reading.policies is None:
        raise PolicyErrors(reading.findings)
    if options.allow_missing_env:
        for finding in reading.findings:
            print(finding, file=sys.stderr)
    clock = ManualClock(SystemClock().wall())
    counter = TokenCounter(Vocabularies())
    prices = load_prices(own=None if options.prices is None else Path(options.prices))
    keeps_credentials = bool(environment.get("WEIR_SECRET_KEY"))
    return Pipeline(
        reading.policies,
        counter,
        clock,
        LaneCapabilities(coalesce=True, batch=environment.get("WEIR_STORE") != "off"),
        prices=prices,
        prefixes=PrefixMemory(clock),
        deferring=Deferring(prices, prices, Pace(prices), keeps_credentials, is_available=lambda: True),
    )


def _headers(lines: list[str]) -> dict[str, str]:
    headers: dict[str, str] = {}
    for line in lines:
        name, colon, value = line.partition(":")
        if not colon or not name.strip():
            raise ValueError(f"--header {line!r} is not 'NAME: VALUE'")
        headers[name.strip().lower()] = value.strip()
    return headers


# --- many requests ------------------------------------------------------------------------------------------


def _sum_up(options: argparse.Namespace, pipeline: Pipeline, asked: Request, lines: Iterable[bytes]) -> int:
    clock = SystemClock()
    began = clock.monotonic()
    corpus = Corpus(pipeline)
    unreadable = 0

    def report(number: int) -> None:
        nonlocal unreadable
        unreadable += 1
        print(f"{options.request}:{number}: this line is no JSON", file=sys.stderr)

    try:
        for request in read_requests(lines, asked, matched_path, report):
            corpus.add(request)
    except ProxyError as error:
        return usage_error("explain", f"{options.request}: {error.message}")
    summary = corpus.summary() | {"unreadable": unreadable}
    seconds = clock.monotonic() - began
    if options.json:
        sys.stdout.buffer.write(
            orjson.dumps(summary | {"seconds": seconds}, option=orjson.OPT_APPEND_NEWLINE)
        )
    else:
        sys.stdout.write(corpus_text(summary, seconds))
    return 1 if unreadable else 0


def _print_rejection(facts: dict[str, Any]) -> None:
    print(f"rejected   {facts['status']} {facts['code']}: {facts['message']}")
    if "route" in facts:
        print(f"route      {facts['route']}")
        for step in facts["steps"]:
            print(f"step       {step['name']}: {step['status']}")


# --- one request --------------------------------------------------------------------------------------------


def _explain_one(
    options: argparse.Namespace, pipeline: Pipeline, asked: Request, lines: Iterable[bytes]
) -> int:
    request = Request(asked.method, asked.path, asked.header, b"".join(lines))
    if options.json:
        text = explain_request(pipeline, request)
        sys.stdout.buffer.write(text + b"\n")
        return 1 if text.startswith(b'{"rejected"') else 0
    trace = Trace()
    try:
        decision = pipeline.explain(request, trace)
    except ProxyError as error:
        _print_rejection(rejection(error))
        return 1
    _print(explanation(pipeline, request, decision, trace), trace)
    _print_body(request, decision, trace)
    return 0


def _print(facts: dict[str, Any], trace: Trace) -> None:
    print(f"route      {facts['route'] or '(none: passes untouched)'}")
    for lost in facts["lost"]:
        print(f"  not      {lost['route']}: {lost['reason']}")
    print(f"upstream   {facts['upstream']}")
    for index, step in enumerate(facts["steps"]):
        detail = ", ".join(f"{key}={value}" for key, value in step["detail"].items())
        print(f"step       {step['name']}: {step['status']}" + (f" ({detail})" if detail else ""))
        documents = [stage.document for stage in trace.stages[index : index + 2]]
        if len(set(documents)) == 2:
            if any(step[what]["before"] != step[what]["after"] for what in ("tokens", "usd")):
                _print_change(step["tokens"], step["usd"])
            _print_diff(*(document.to_bytes() for document in documents))
    print(f"urgency    {facts['urgency']['value']}: {facts['urgency']['reason']}")
    print(f"lane       {facts['lane']['value']}: {facts['lane']['reason']}")
    if facts["deferral"] is not None:
        _print_deferral(facts["deferral"])
    for way in facts["strategies"]:
        print(
            f"  {'may be' if way['obstacle'] is None else 'not   '}   {way['name']}"
            + _because(way["obstacle"])
        )
    _print_change(facts["tokens"], facts["usd"])


def _print_deferral(facts: dict[str, Any]) -> None:
    until = f"answered within {facts['deadline_seconds']:.0f} s"
    held = f", held for {facts['hold_seconds']:.0f} s at most" if facts["hold_seconds"] is not None else ""
    print(f"  {facts['delivery']}, by {' then '.join(facts['tiers'])}, {until}{held}")


def _because(obstacle: str | None) -> str:
    return "" if obstacle is None else f": {obstacle}"


def _print_change(tokens: dict[str, int | None], usd: dict[str, float | None]) -> None:
    if tokens["before"] is None:
        return
    line = f"tokens     {tokens['before']} -> {tokens['after']}"
    if usd["before"] is not None and usd["after"] is not None:
        line += f" (${usd['before']:.6f} -> ${usd['after']:.6f})"
    print(line)


def _print_body(request: Request, decision: Decision, trace: Trace) -> None:
    sent = sent_body(request, decision)
    if sent == request.body:
        print("body       unchanged, byte for byte")
        return
    print(f"body       changed, {len(request.body)} -> {len(sent)} bytes")
    stages = [stage.document.to_bytes() for stage in trace.stages] or [request.body]
    if stages[0] != request.body:
        print("duplicates only the last of equal keys is sent")
        _print_diff(request.body, stages[0])
    if decision.asks_usage:
        print("usage      asked for on Weir's own behalf; its event is removed from the answer")
        _print_diff(stages[-1], sent)


def _print_diff(before: bytes, after: bytes) -> None:
    for line in body_diff(before, after):
        print(f"  {line}")
