from __future__ import annotations

from proxy.sim.generation import Choice, Finish
from proxy.sim.work import Bill, Identity, PlainAnswer, Work, data_event, named_event


def test_ids_are_unique_by_execution_prefix_and_part() -> None:
    first, second = Identity("1 hash 1", 0), Identity("1 hash 2", 0)
    ids = {
        first.make("call_"),
        first.make("call_", "0"),
        first.make("call_", "1"),
        first.make("fc_"),
        second.make("call_"),
    }
    assert len(ids) == 5
    assert first.make("call_") == Identity("1 hash 1", 9).make("call_")
    assert len(first.make("resp_", length=48)) == len("resp_") + 48


def test_work_knows_what_was_produced_by_a_step() -> None:
    long = Choice(("a", "b", "c"), Finish.STOP, reasoning=("r", "s"))
    short = Choice(("a",), Finish.STOP)
    work = Work(PlainAnswer({}), "m", 10, choices=(long, short))
    assert work.last_step == 4
    assert [work.output_tokens_by(step) for step in (-1, 0, 2, 4)] == [0, 2, 4, 6]
    assert [work.reasoning_tokens_by(step) for step in (-1, 0, 2, 4)] == [0, 1, 2, 2]


def test_events_are_compact_utf8_and_never_fail_on_surrogates() -> None:
    assert data_event({"a": "é"}) == 'data: {"a":"é"}\n\n'.encode()
    assert named_event("ping", {"a": "\ud83d"}) == b'event: ping\ndata: {"a":"?"}\n\n'


def test_a_bill_adds_up() -> None:
    assert Bill(10, 5).total_tokens == 15
