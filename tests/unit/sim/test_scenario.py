from __future__ import annotations

from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import get_type_hints

import pytest

from proxy.sim.faults import HEADER_PREFIX
from proxy.sim.scenario import (
    BackgroundRules,
    BatchRules,
    CacheRules,
    FaultMatch,
    FaultRule,
    Faults,
    FileRules,
    FlexRules,
    LimitRules,
    LineRule,
    Scenario,
    ScenarioError,
    SlotRules,
    Timing,
    load_scenario,
)

DOCS = Path(__file__).parents[3] / "docs" / "simulator.md"


def test_reads_a_whole_scenario(tmp_path: Path) -> None:
    file = tmp_path / "s.yaml"
    file.write_text(
        "seed: 7\n"
        "timing: {base_ms: 10, decode_ms_per_token: 2}\n"
        "cache: {min_tokens: 64}\n"
        "slots: {concurrent: 4}\n"
        "limits: {requests_per_minute: 60}\n"
        "api_keys: [sk-sim]\n"
        "faults:\n"
        "  - match: {path: /v1/chat/*, headers: {x-team: a}}\n"
        "    every: 10\n"
        "    do: {status: 503, retry_after: 1}\n"
    )
    scenario = load_scenario(file)
    assert scenario.timing == Timing(base_ms=10.0, decode_ms_per_token=2.0)
    assert scenario.cache.min_tokens == 64
    assert (scenario.slots.concurrent, scenario.limits.requests_per_minute) == (4, 60)
    assert scenario.faults == (
        FaultRule(Faults(status=503, retry_after=1.0), FaultMatch("/v1/chat/*", None, {"x-team": "a"}), 10),
    )


def test_names_the_line_of_a_mistake(tmp_path: Path) -> None:
    file = tmp_path / "s.yaml"
    file.write_text("faults:\n  - do: {status: 503}\n    mach: {}\n")
    with pytest.raises(ScenarioError) as found:
        load_scenario(file)
    assert str(found.value) == f"{file}:3: faults[0].mach: unknown key (did you mean 'match'?)"


def test_a_fault_rule_needs_something_to_do(tmp_path: Path) -> None:
    file = tmp_path / "s.yaml"
    file.write_text("faults: [{every: 2}]\n")
    with pytest.raises(ScenarioError, match="key 'do' is missing"):
        load_scenario(file)


def test_defaults_are_fast_enough_for_a_demo() -> None:
    timing = Scenario().timing
    assert timing.base_ms + 1000 * timing.prefill_ms_per_token + 40 * timing.decode_ms_per_token < 1000


@pytest.mark.parametrize(
    "kind",
    [
        Scenario,
        Timing,
        CacheRules,
        SlotRules,
        LimitRules,
        FaultRule,
        FaultMatch,
        Faults,
        FileRules,
        BatchRules,
        LineRule,
        FlexRules,
        BackgroundRules,
    ],
)
def test_every_key_is_documented_and_explained(kind: type) -> None:
    assert is_dataclass(kind)
    text = DOCS.read_text()
    for item in fields(kind):
        documented = HEADER_PREFIX + item.name.replace("_", "-") if kind is Faults else item.name
        assert f"`{documented}`" in text, f"{kind.__name__}.{item.name} is not in docs/simulator.md"
        assert item.name in get_type_hints(kind)


def test_the_documented_defaults_are_the_defaults(tmp_path: Path) -> None:
    blocks = DOCS.read_text().split("```yaml\n")[1:]
    defaults, example, lines = (block.split("```")[0] for block in blocks)
    file = tmp_path / "s.yaml"
    file.write_text(defaults)
    assert load_scenario(file) == Scenario()
    file.write_text(example)
    assert len(load_scenario(file).faults) == 3
    file.write_text(lines)
    assert len(load_scenario(file).batches.lines) == 4
