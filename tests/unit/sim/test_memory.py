from __future__ import annotations

from proxy.sim.memory import Memory


def test_recalls_what_the_same_caller_kept() -> None:
    memory = Memory()
    memory.keep("a", "resp_1", ("x", "y"))
    assert memory.recall("a", "resp_1") == ("x", "y")
    assert memory.recall("b", "resp_1") is None
    assert memory.recall("a", "resp_2") is None


def test_forgets_the_oldest_beyond_a_thousand() -> None:
    memory = Memory()
    for number in range(1001):
        memory.keep("a", f"resp_{number}", ())
    assert memory.recall("a", "resp_0") is None
    assert memory.recall("a", "resp_1") == ()
