"""What counting needs is loaded where policies count, and before these are in force."""

from __future__ import annotations

from pathlib import Path

import pytest

from proxy.app import load_policies
from proxy.settings import Settings
from proxy.tokens.fixed import FixedCounter
from tests.functional.test_reload import answer, cap_in_force, capped, wait_for_cap, wait_until
from tests.support.chat import chat_policy
from tests.support.raw_upstream import RawUpstream
from tests.support.weir import weir


class NotingCounter(FixedCounter):
    """Notes when it is told to be ready."""

    def __init__(self) -> None:
        self.prepared = 0

    def prepare(self) -> None:
        """Note it."""
        self.prepared += 1


def test_the_counter_is_ready_before_policies_that_count_come_into_force(tmp_path: Path) -> None:
    counter = NotingCounter()
    file = tmp_path / "weir.yaml"
    file.write_text(capped(5))
    with RawUpstream(answer) as upstream, weir(tmp_path, upstream.url, file, counter=counter) as proxy:
        wait_for_cap(proxy, 5)
        assert counter.prepared == 0
        file.write_text(chat_policy("steps: [{trim_history: {budget: 500}}, {cap_output: {default: 7}}]"))
        wait_until(lambda: "set=7" in (cap_in_force(proxy) or ""))
        assert counter.prepared == 1


@pytest.mark.parametrize(
    ("route", "counts"),
    [
        ("steps: [{cap_output: {default: 5}}]", False),
        ("steps: [{trim_history: {budget: 500}}]", True),
        ("match: {path: /v1/chat/completions, tokens: {min: 100}}", True),
        ("coalesce: {}", True),
        ("allow_caller: [x-weir-explain]", True),
    ],
)
def test_policies_know_whether_they_count(tmp_path: Path, route: str, counts: bool) -> None:
    match = "" if route.startswith("match") else "match: {path: /v1/chat/completions}, "
    file = tmp_path / "weir.yaml"
    file.write_text(
        f"version: 1\nupstreams: {{a: {{base_url: 'http://h/v1'}}}}\nroutes: [{{name: r, {match}{route}}}]\n"
    )
    assert load_policies(Settings(policies=(str(file),)), {}).counts_tokens is counts
