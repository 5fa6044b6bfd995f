from __future__ import annotations

import json

from proxy.sim.generation import Ask, Finish, generate, is_reasoning_model, reasoning_tokens
from proxy.sim.scenario import Faults, Timing
from proxy.sim.tools import ToolSpec

TIMING = Timing(output_tokens=40, output_spread=0.25, reasoning_tokens=64)
NO_FAULTS = Faults()
LITERAL = Faults(content="One two. STOP three four.")


def test_the_same_ask_gives_the_same_answer_and_choices_differ() -> None:
    ask = Ask("key")
    assert generate(ask, 0, TIMING, NO_FAULTS) == generate(ask, 0, TIMING, NO_FAULTS)
    assert generate(ask, 0, TIMING, NO_FAULTS).text != generate(ask, 1, TIMING, NO_FAULTS).text


def test_length_stays_within_the_spread() -> None:
    lengths = {generate(Ask(f"key {i}"), 0, TIMING, NO_FAULTS).tokens for i in range(60)}
    assert min(lengths) >= 30
    assert max(lengths) <= 50
    assert len(lengths) > 5


def test_the_header_sets_the_length_exactly() -> None:
    assert generate(Ask("key"), 0, TIMING, Faults(tokens=123)).tokens == 123


def test_a_cap_ends_with_length_and_a_fitting_answer_does_not() -> None:
    cut = generate(Ask("key", cap_tokens=5), 0, TIMING, NO_FAULTS)
    assert (cut.tokens, cut.finish) == (5, Finish.LENGTH)
    whole = generate(Ask("key", cap_tokens=5), 0, TIMING, Faults(tokens=5))
    assert (whole.tokens, whole.finish) == (5, Finish.STOP)


def test_a_capped_answer_is_the_beginning_of_the_whole_one() -> None:
    whole = generate(Ask("key"), 0, TIMING, NO_FAULTS)
    assert whole.text.startswith(generate(Ask("key", cap_tokens=9), 0, TIMING, NO_FAULTS).text)


def test_the_earliest_stop_sequence_cuts_and_is_not_shown() -> None:
    choice = generate(Ask("key", stops=("four", " STOP")), 0, TIMING, LITERAL)
    assert (choice.text, choice.finish, choice.stop_sequence) == ("One two.", Finish.STOP, " STOP")


def test_a_stop_sequence_behind_the_cap_is_not_met() -> None:
    choice = generate(Ask("key", cap_tokens=2, stops=("STOP",)), 0, TIMING, LITERAL)
    assert (choice.finish, choice.stop_sequence) == (Finish.LENGTH, None)


def test_reasoning_counts_towards_the_cap_and_can_eat_the_answer() -> None:
    choice = generate(Ask("key", cap_tokens=10, reasoning_tokens=64), 0, TIMING, NO_FAULTS)
    assert (len(choice.reasoning), choice.text, choice.finish) == (10, "", Finish.LENGTH)


def test_effort_scales_reasoning() -> None:
    def tokens(effort: str | None) -> int:
        return reasoning_tokens(TIMING, NO_FAULTS, "gpt-5-mini", effort)

    assert [tokens(effort) for effort in ("none", "low", None, "high")] == [0, 16, 64, 128]
    assert reasoning_tokens(TIMING, NO_FAULTS, "gpt-4o", None) == 0
    assert reasoning_tokens(TIMING, Faults(reasoning=3), "gpt-4o", None) == 3


def test_knows_reasoning_models_by_their_families() -> None:
    assert all(is_reasoning_model(name) for name in ("o1", "o3-mini", "o4-mini", "gpt-5-mini", "gpt-5.6-sol"))
    assert not any(
        is_reasoning_model(name) for name in ("gpt-4o", "gpt-4.1", "claude-opus", "omni-moderation")
    )


def test_json_fits_the_schema_and_is_cut_by_a_cap() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
    whole = generate(Ask("key", json_schema=schema), 0, TIMING, NO_FAULTS)
    assert isinstance(json.loads(whole.text)["a"], int)
    assert (
        generate(Ask("key", json_schema=schema, cap_tokens=3), 0, TIMING, NO_FAULTS).finish is Finish.LENGTH
    )


def test_tool_arguments_come_in_fragments_of_valid_json() -> None:
    schema = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
    choice = generate(Ask("key", calls=(ToolSpec("w", schema), ToolSpec("v"))), 0, TIMING, NO_FAULTS)
    assert choice.finish is Finish.TOOLS
    assert list(json.loads(choice.calls[0].arguments)) == ["city"]
    assert json.loads(choice.calls[1].arguments) == {}
    assert len(choice.calls[0].fragments) > 3
    assert choice.tokens == sum(1 + len(call.fragments) for call in choice.calls)


def test_a_custom_tool_gets_free_text() -> None:
    choice = generate(Ask("key", calls=(ToolSpec("code", None, True),)), 0, TIMING, NO_FAULTS)
    assert choice.calls[0].is_custom
    assert not choice.calls[0].arguments.startswith("{")


def test_a_cap_cuts_tool_calls() -> None:
    ask = Ask("key", cap_tokens=3, calls=(ToolSpec("a"), ToolSpec("b")))
    choice = generate(ask, 0, TIMING, NO_FAULTS)
    assert (choice.tokens, choice.finish) == (3, Finish.LENGTH)
