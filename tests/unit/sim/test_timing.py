from __future__ import annotations

import asyncio

from proxy.sim.scenario import Faults, Timing
from proxy.sim.timing import pace_of

TIMING = Timing(base_ms=40, prefill_ms_per_token=0.5, decode_ms_per_token=10)


def test_first_token_is_due_after_base_and_prefill_of_what_is_not_cached() -> None:
    assert pace_of(TIMING, Faults(), 200, 5.0).first_token_seconds == 0.14
    assert pace_of(TIMING, Faults(), 0, 5.0).first_token_seconds == 0.04


def test_faults_override_the_scenario() -> None:
    pace = pace_of(TIMING, Faults(first_byte_ms=300, token_ms=2, head_ms=100), 200, 0.0)
    assert (pace.head_seconds, pace.first_token_seconds, pace.token_seconds) == (0.1, 0.3, 0.002)


def test_the_head_never_comes_after_the_first_token() -> None:
    assert pace_of(TIMING, Faults(head_ms=9999), 0, 0.0).head_seconds == 0.04


def test_knows_how_far_decoding_has_got() -> None:
    pace = pace_of(TIMING, Faults(), 0, 100.0)
    assert pace.step_at(100.03, 50) == -1
    assert pace.step_at(100.0651, 50) == 2
    assert pace.step_at(200.0, 50) == 50
    assert pace_of(TIMING, Faults(token_ms=0), 0, 100.0).step_at(100.05, 50) == 50


def test_waits_for_head_and_steps_in_turn() -> None:
    async def main() -> list[float]:
        now = asyncio.get_running_loop().time
        start = now()
        pace = pace_of(TIMING, Faults(head_ms=10, first_byte_ms=30, token_ms=20), 0, start)
        times = []
        await pace.wait_for_head()
        times.append(now() - start)
        for step in (0, 1):
            await pace.wait_for_step(step)
            times.append(now() - start)
        return times

    head, first, second = asyncio.run(main())
    assert head >= 0.009
    assert first >= 0.029
    assert second >= 0.049
