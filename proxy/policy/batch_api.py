"""Owns `batch_api` of an upstream: whose `/v1/files` and `/v1/batches` Weir answers itself, and how.

`auto` stands for what the provider is: servers of models that have no batch API are served. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import Enum
from typing import Any

from proxy.core.upstream import Provider, ServedBatchApi
from proxy.policy.base_paths import is_below
from proxy.policy.findings import FindingList, Mark
from proxy.policy.kinds import Choice, Flag, Real, Text, Whole
from proxy.policy.records import Key, Record
from proxy.policy.webhooks import webhook_name

SERVED_BY_DEFAULT = frozenset({Provider.VLLM, Provider.LLAMACPP})
"""Providers whose servers are known to have no batch API."""

_UNKNOWN = SERVED_BY_DEFAULT | {Provider.GENERIC}
"""Providers that are not known to have a batch API of their own."""


_CUT_AT_ONCE = frozenset({Provider.VLLM})
"""Providers whose servers stop working for a caller as soon as it is gone, and bill nobody for that."""


class BatchApiMode(Enum):
    """Who answers `/v1/files` and `/v1/batches`."""

    AUTO = "auto"
    SERVE = "serve"
    PASS = "pass"


BATCH_API: Record[dict[str, Any]] = Record(
    {
        "mode": Key(
            Choice.of_enum(BatchApiMode), "`serve`: Weir answers; `pass`: the upstream; `auto`: by provider."
        ),
        "max_in_flight": Key(Whole(least=1, most=10_000), "Most lines of batches in progress at once."),
        "may_meet": Key(
            Real(least=0.001, most=1),
            "Share of callers' requests that may meet lines that may slow them down.",
        ),
        "give_way": Key(Flag(), "Whether lines are cut off when a caller's request comes."),
        "priority": Key(Whole(), "`priority` of a line at vLLM; higher numbers wait longer."),
        "webhook": Key(Text(webhook_name), "Name of the webhook that hears of ended batches."),
    },
    lambda given: given,
    "Weir's own batch API, for an upstream that has none.",
    lambda text: f"write {{mode: {text}}}",
)


def served_batch_api(
    provider: Provider, given: Mapping[str, Any], mark: Mark, path: str, findings: FindingList
) -> ServedBatchApi | None:
    """Return how an upstream is served, `None` where its requests pass; warns of what has no effect."""
    mode = given.get("mode", BatchApiMode.AUTO)
    settings = {key: value for key, value in given.items() if key != "mode"}
    is_served = mode is BatchApiMode.SERVE or (mode is BatchApiMode.AUTO and provider in SERVED_BY_DEFAULT)
    if is_served and provider not in _UNKNOWN:
        problem = (
            f"files and batches are kept and worked off by Weir, at full price: {provider.value} has a batch "
            "API of its own, which is not used"
        )
        findings.warn(mark, f"{path}.mode", problem)
    if not is_served and settings:
        problem = f"has no effect: mode {mode.value} passes files and batches on to provider {provider.value}"
        hint = "write mode: serve" if mode is BatchApiMode.AUTO else ""
        findings.warn(mark, f"{path}.{next(iter(settings))}", problem, hint)
    settings.setdefault("give_way", provider in _CUT_AT_ONCE)
    return ServedBatchApi(**settings) if is_served else None


def may_ask_batch_api(path: str) -> bool:
    """Tell at little cost whether a path in lower case may ask for files or batches: most do not."""
    return "/files" in path or "/batches" in path


def asks_batch_api(names: Iterable[str]) -> bool:
    """Tell whether a path asks for files or batches. `names`: what it is called, in lower case."""
    return any(is_below(name, base) for name in names for base in _PATHS)


_PATHS = ("/v1/files", "/v1/batches")
