"""Fixtures of the simulator's tests: a running provider, as fast as it can be or as a test wants it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from proxy.core.clock import Clock
from proxy.sim.scenario import Scenario
from tests.unit.sim.running import FAST, Sim, running


@pytest.fixture
def sim() -> Iterator[Sim]:
    """A provider that answers at once."""
    with running(FAST) as started:
        yield started


@pytest.fixture
def simulate() -> Iterator[Callable[..., Sim]]:
    """Start a provider with a scenario and a clock of the test's own."""
    with contextlib.ExitStack() as stack:

        def start(scenario: Scenario = FAST, clock: Clock | None = None, state: Path | None = None) -> Sim:
            return stack.enter_context(running(scenario, clock, state))

        yield start
