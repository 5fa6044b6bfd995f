"""What is sent in place of a rewritten body that was refused."""

from __future__ import annotations

import json
from collections.abc import Iterable

from proxy.core.clock import ManualClock
from proxy.core.decision import StepReport, StepStatus
from proxy.core.exchange import Exchange
from proxy.lanes.lane import Rewrite
from proxy.lanes.take_back import TakeBack
from proxy.upstream.refusals import Refusals

APPLIED, SKIPPED = StepStatus.APPLIED, StepStatus.SKIPPED


def refusal(name: str = "", message: str = "Unsupported parameter") -> bytes:
    return json.dumps({"error": {"param": name or None, "message": message}}).encode()


class Taking:
    """A rewrite of which `a`, `b` and `c` were added."""

    def __init__(self, original: bytes | None = b"original") -> None:
        self.refusals = Refusals(ManualClock())
        self.exchange = Exchange("id", 0.0)
        self.exchange.model = "large"
        self.exchange.tokens_before, self.exchange.tokens_after = 9, 5
        self.exchange.steps = (
            StepReport("one", APPLIED, detail=(("set", 1),), added=("a",)),
            StepReport("two", APPLIED, detail=(("x", 1),), added=("b", "c")),
            StepReport("three", SKIPPED, "no"),
        )

        def without(params: Iterable[str]) -> bytes:
            return b"without " + " ".join(params).encode()

        added, inner = frozenset("abc"), frozenset({"mark"})
        rewrite = Rewrite("large", added, without, original, inner, "small")
        self.take = TakeBack(rewrite, "up", self.refusals, self.exchange)

    @property
    def known(self) -> frozenset[str]:
        return self.refusals.known("up", "large")


def test_parameters_go_one_by_one_then_everything_does() -> None:
    taking = Taking()
    assert taking.take.next_body(refusal("a")) == b"without a"
    assert taking.take.next_body(refusal("b")) == b"without a b"
    assert taking.take.next_body(refusal("c")) == b"original"
    assert taking.take.is_over
    assert taking.take.next_body(refusal("c")) is None


def test_a_refusal_that_names_nothing_of_ours_leads_to_the_original_or_nowhere() -> None:
    assert Taking().take.next_body(refusal("other")) == b"original"
    assert Taking(original=None).take.next_body(refusal("other")) is None


def test_the_same_name_twice_is_not_taken_back_twice() -> None:
    taking = Taking()
    assert taking.take.next_body(refusal("a")) == b"without a"
    assert taking.take.next_body(refusal("a")) == b"original"


def test_steps_tell_what_became_of_them() -> None:
    taking = Taking()
    taking.take.next_body(refusal("a"))
    taking.take.next_body(refusal("b"))
    reason = "the upstream refuses"
    assert taking.exchange.steps == (
        StepReport("one", SKIPPED, f"{reason} a"),
        StepReport("two", APPLIED, f"{reason} b", (("x", 1),), ("c",)),
        StepReport("three", SKIPPED, "no"),
    )
    assert taking.exchange.model == "large"
    taking.take.next_body(refusal())
    assert [step.status for step in taking.exchange.steps] == [SKIPPED] * 3
    assert taking.exchange.steps[1].reason == "the upstream refused the rewritten request"
    assert (taking.exchange.model, taking.exchange.tokens_before, taking.exchange.tokens_after) == (
        "small",
        None,
        None,
    )


def test_nothing_is_learnt_before_it_has_worked() -> None:
    taking = Taking()
    taking.take.next_body(refusal("a"))
    assert taking.known == frozenset()
    taking.take.answered(200)
    assert taking.known == {"a"}
    assert taking.exchange.taken_back == ("a",)


def test_nothing_is_learnt_from_a_value_that_does_not_fit() -> None:
    taking = Taking()
    taking.take.next_body(refusal("a", "a is too large"))
    taking.take.answered(200)
    assert taking.known == frozenset()
    assert taking.exchange.taken_back == ("a",)


def test_a_mark_inside_is_learnt_though_all_of_it_is_taken_back() -> None:
    taking = Taking()
    assert taking.take.next_body(refusal("messages[0].content[0].mark")) == b"original"
    taking.take.answered(200)
    assert taking.known == {"mark"}
    assert taking.exchange.taken_back == ("original",)


def test_what_is_refused_in_the_end_was_not_ours_to_mend() -> None:
    for status in (400, 422):
        taking = Taking()
        taking.take.next_body(refusal("a"))
        taking.take.next_body(refusal("other"))
        taking.take.answered(status)
        assert (taking.known, taking.exchange.taken_back) == (frozenset(), ())


def test_an_error_afterwards_teaches_nothing() -> None:
    taking = Taking()
    taking.take.next_body(refusal("a"))
    taking.take.answered(503)
    assert (taking.known, taking.exchange.taken_back) == (frozenset(), ("a",))
