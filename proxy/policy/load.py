"""Owns the way from paths to a validated `PolicySet`: read, parse, substitute, decode, assemble, judge.

Everything that is wrong is reported at once. The result is immutable; `proxy.policy.match` compiles it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from proxy.policy.assemble import assemble
from proxy.policy.builtin import PLACEHOLDER
from proxy.policy.findings import Broken, Finding, FindingList, PolicyErrors
from proxy.policy.format import PolicyFile, file_record
from proxy.policy.kinds import Place
from proxy.policy.model import PolicySet, Upstream
from proxy.policy.oddities import report_oddities
from proxy.policy.sources import policy_files, read_bytes, read_text
from proxy.policy.substitute import Substitution
from proxy.policy.yaml_source import parse_yaml
from proxy.steps import STEPS
from proxy.steps.step import Step


@dataclass(frozen=True, slots=True)
class Reading:
    """What came of reading: the set unless there are errors, all findings, and the files it refers to."""

    policies: PolicySet | None
    findings: tuple[Finding, ...]
    referenced: tuple[str, ...]


def load(
    paths: Sequence[str],
    env: Mapping[str, str],
    fallback_upstream: Upstream | None = None,
    steps: Sequence[Step] = STEPS,
) -> PolicySet:
    """Return the policy set of files and directories.

    `env` serves `${NAME}`. `fallback_upstream` becomes the default of a set that defines no upstreams.
    Raises `PolicyErrors` with every finding.
    """
    reading = read(paths, env, fallback_upstream, steps)
    if reading.policies is None:
        raise PolicyErrors(reading.findings)
    return reading.policies


def check(
    paths: Sequence[str],
    env: Mapping[str, str],
    steps: Sequence[Step] = STEPS,
    *,
    allow_missing: bool = False,
) -> list[Finding]:
    """Return everything that is wrong or odd about a set, errors and warnings, in reading order.

    A set without upstreams is fine here: whoever serves it brings one.
    """
    return list(read(paths, env, PLACEHOLDER, steps, allow_missing=allow_missing).findings)


def read(
    paths: Sequence[str],
    env: Mapping[str, str],
    fallback_upstream: Upstream | None,
    steps: Sequence[Step] = STEPS,
    *,
    allow_missing: bool = False,
) -> Reading:
    """Read a set and say what is wrong with it; raises nothing.

    With `allow_missing` placeholders stand for variables and files that are not there, each with a warning:
    such a set can be judged and explained, but must never be served.
    """
    findings = FindingList()
    referenced: list[str] = []

    def read_referenced(path: str) -> str:
        referenced.append(path)
        return read_text(path)

    substitution = Substitution(env, read_referenced, allow_missing)
    files = [
        file
        for name in policy_files(paths, findings)
        if (file := _read_file(name, substitution, steps, findings)) is not None
    ]
    policies: PolicySet | None = None
    if not findings.has_errors:
        policies, routes = assemble(files, fallback_upstream, findings)
        report_oddities(policies, routes, findings)
    usable = policies if not findings.has_errors else None
    return Reading(usable, findings.in_order(), tuple(dict.fromkeys(referenced)))


def _read_file(
    name: str, substitution: Substitution, steps: Sequence[Step], findings: FindingList
) -> PolicyFile | None:
    raw = read_bytes(name, findings)
    node = parse_yaml(name, raw, findings) if raw is not None else None
    if node is None:
        return None
    place = Place("", findings)
    try:
        return file_record(steps).read(substitution.apply(node, place), place)
    except Broken:
        return None
