"""How `weir explain` shows the sums over a file of requests to a person."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from proxy.cli.table import Cell, table


def corpus_text(summary: Mapping[str, Any], seconds: float) -> str:
    """Return the summary of `proxy.explanation.corpus` as text; `seconds` is how long it took."""
    return "\n".join(_lines(summary, seconds)) + "\n"


def _lines(summary: Mapping[str, Any], seconds: float) -> Iterator[str]:
    requests = summary["requests"]
    rate = f", {requests / seconds:,.0f} requests/s" if seconds > 0 else ""
    yield f"requests   {requests:,} ({seconds:.1f} s{rate})"
    if summary["unreadable"]:
        yield f"unreadable {summary['unreadable']:,} more lines are no JSON"
    if not requests:
        return
    yield f"touched    {summary['touched']:,} ({_share(summary['touched'], requests)})"
    for message, count in summary["rejected"].items():
        yield f"rejected   {count:,} ({_share(count, requests)}): {message}"
    for name, what in (("unmatched", "no route"), ("unread", "bodies that are no JSON objects")):
        if summary[name]:
            yield f"{name:<10} {summary[name]:,} ({_share(summary[name], requests)}): {what}"
    for name in ("routes", "urgency", "lane"):
        if summary[name]:
            yield f"{name:<10} " + ", ".join(f"{value} {count:,}" for value, count in summary[name].items())
    caps = summary["caps"]
    if caps["given"] or caps["lowered"]:
        lowered = f"lowered {caps['lowered']:,} (by {caps['lowered_by_tokens']:,} tokens at most)"
        yield f"caps       given {caps['given']:,}, {lowered}"
    yield ""
    yield _table(summary)
    for step in summary["steps"]:
        for reason, count in step["reasons"].items():
            yield f"  {step['name']}: {reason} ({count:,})"
    yield from _unpriced(summary.get("usd", {}))


def _unpriced(usd: Mapping[str, Any]) -> Iterator[str]:
    """Say for how many requests no price is known, and what would have to be said or known."""
    if not usd.get("unpriced_requests", 0):
        return
    yield f"  no price is known for {usd['unpriced_requests']:,} requests; their money is not in the sums"
    if usd["unpriced_upstreams"]:
        names = ", ".join(usd["unpriced_upstreams"])
        yield f"    their upstream has no provider: {names} (give it one, such as provider: openai)"
    if usd["unpriced_models"]:
        yield f"    not in the price table of their provider: {', '.join(usd['unpriced_models'])}"


def _table(summary: Mapping[str, Any]) -> str:
    has_money = "usd" in summary
    heading = ["step", "applied", "share", "tokens before", "after", "saved", "%", "uncached saved"]
    rows = [_row(step["name"], step, step["status"].get("applied", 0), summary) for step in summary["steps"]]
    rows.append(_row("all", summary, summary["touched"], summary))
    return table(heading + ["$ before", "$ saved"] * has_money, rows)


def _row(name: str, sums: Mapping[str, Any], applied: int, summary: Mapping[str, Any]) -> list[Cell]:
    tokens, uncached = sums["tokens"], sums["uncached_tokens"]
    saved = tokens["before"] - tokens["after"]
    row: list[Cell] = [name, applied, _share(applied, summary["requests"]), tokens["before"], tokens["after"]]
    row += [saved, _share(saved, tokens["before"]), uncached["before"] - uncached["after"]]
    if "usd" in sums:
        usd = sums["usd"]
        row += [f"{usd['before']:.4f}", f"{usd['before'] - usd['after']:.4f}"]
    return row


def _share(part: int, whole: int) -> str:
    return f"{100 * part / whole:.1f}%" if whole else "-"
