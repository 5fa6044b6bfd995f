"""`weir explain`: what would happen to a request, without calling anyone."""

from __future__ import annotations

import argparse
import difflib
import os
import sys
from pathlib import Path
from typing import Any

import orjson

from proxy.cli.arguments import Subcommands, usage_error
from proxy.core.clock import SystemClock
from proxy.core.errors import ProxyError
from proxy.edge.request_target import matched_path
from proxy.explanation import explanation, explain_request, sent_body
from proxy.pipeline import Pipeline, Request
from proxy.policy.builtin import PLACEHOLDER
from proxy.policy.findings import PolicyErrors
from proxy.policy.load import load
from proxy.tokens.counter import TokenCounter
from proxy.tokens.vocabulary import load_vocabularies


def add_to(commands: Subcommands) -> None:
    """Add the command to a parser."""
    parser = commands.add_parser("explain", help="show what would happen to a request")
    parser.add_argument("--policies", action="append", required=True, metavar="PATH")
    parser.add_argument("--path", default="/v1/chat/completions", help="request path (default /v1/chat/completions)")
    parser.add_argument("--method", default="POST", help="request method (default POST)")
    parser.add_argument("--header", action="append", default=[], metavar="'NAME: VALUE'", help="request header")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("request", metavar="REQUEST.json|-", help="the request's body, - for standard input")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Explain; 1 if the policies cannot be used or refuse the request."""
    try:
        body = sys.stdin.buffer.read() if options.request == "-" else Path(options.request).read_bytes()
    except OSError as problem:
        return usage_error("explain", f"{options.request}: {problem.strerror}")
    try:
        headers = _headers(options.header)
        path = matched_path(options.path.encode("utf-8"))
    except (ProxyError, ValueError) as problem:
        return usage_error("explain", str(problem))
    try:
        policies = load(options.policies, dict(os.environ), PLACEHOLDER)
    except PolicyErrors as errors:
        print(errors, file=sys.stderr)
        return 1
    pipeline = Pipeline(policies, TokenCounter(load_vocabularies().encodings), SystemClock())
    request = Request(options.method.upper(), path, headers.get, body)
    if options.json:
        text = explain_request(pipeline, request)
        sys.stdout.buffer.write(text + b"\n")
        return 1 if text.startswith(b'{"rejected"') else 0
    try:
        decision = pipeline.explain(request)
    except ProxyError as error:
        print(f"rejected   {error.kind.status} {error.kind.code}: {error.message}")
        return 1
    _print(explanation(pipeline, request, decision))
    _print_diff(body, sent_body(request, decision))
    return 0


def _headers(lines: list[str]) -> dict[str, str]:
    headers: dict[str, str] = {}
    for line in lines:
        name, colon, value = line.partition(":")
        if not colon or not name.strip():
            raise ValueError(f"--header {line!r} is not 'NAME: VALUE'")
        headers[name.strip().lower()] = value.strip()
    return headers


def _print(facts: dict[str, Any]) -> None:
    print(f"route      {facts['route'] or '(none: passes untouched)'}")
    for lost in facts["lost"]:
        print(f"  not      {lost['route']}: {lost['reason']}")
    print(f"upstream   {facts['upstream']}")
    for step in facts["steps"]:
        detail = ", ".join(f"{key}={value}" for key, value in step["detail"].items())
        print(f"step       {step['name']}: {step['status']}" + (f" ({detail})" if detail else ""))
    print(f"urgency    {facts['urgency']['value']}: {facts['urgency']['reason']}")
    print(f"lane       {facts['lane']['value']}: {facts['lane']['reason']}")
    tokens = facts["tokens"]
    if tokens["before"] is not None:
        print(f"tokens     {tokens['before']} -> {tokens['after']}")
    if facts["asks_usage"]:
        print("usage      asked for on Weir's own behalf; its event is removed from the answer")


def _print_diff(before: bytes, after: bytes) -> None:
    if before == after:
        print("body       unchanged, byte for byte")
        return
    print("body       changed:")
    for line in difflib.unified_diff(_lines(before), _lines(after), "as written", "as sent", lineterm=""):
        print(f"  {line}")


def _lines(body: bytes) -> list[str]:
    """Return a body as lines that can be compared: one member a line, whatever its own layout."""
    try:
        text = orjson.dumps(orjson.loads(body), option=orjson.OPT_INDENT_2).decode()
    except orjson.JSONDecodeError:
        text = body.decode("utf-8", "replace")
    return text.splitlines()
