"""The order in which groups go, and what never does."""

from __future__ import annotations

import time
from typing import Any

from proxy.dialects.chat import CHAT
from proxy.dialects.conversation import Conversation, read_conversation
from proxy.dialects.messages import MESSAGES
from proxy.steps.trim_history.plan import Limits, Plan, plan_drops
from tests.unit.steps.contexts import body

SYSTEM = {"role": "system", "content": "s"}
USER = {"role": "user", "content": "u"}
ANSWER = {"role": "assistant", "content": "a"}
LOOP = [
    {"role": "assistant", "tool_calls": [{"id": "c"}]},
    {"role": "tool", "tool_call_id": "c", "content": "r"},
]


def read(*messages: Any) -> Conversation:
    conversation = read_conversation(body(messages=list(messages)), CHAT)
    assert conversation is not None
    return conversation


def plan(
    conversation: Conversation,
    budget: int,
    *,
    target: int | None = None,
    floor: int = 0,
    keep_first: int = 0,
    keep_last: int = 1,
    weights: dict[int, int] | None = None,
) -> Plan:
    """Plan with groups of ten tokens unless `weights` says otherwise; `target` makes it cut in blocks."""
    tokens = [10] * len(conversation.groups)
    for index, weight in (weights or {}).items():
        tokens[index] = weight
    limits = Limits(
        budget, budget if target is None else target, floor, target is not None, keep_first, keep_last
    )
    return plan_drops(conversation, tokens, 0, limits)


def test_nothing_goes_within_the_budget() -> None:
    assert plan(read(USER, ANSWER, USER), 30) == Plan(frozenset(), 30)


def test_the_oldest_exchange_goes_whole() -> None:
    assert plan(read(SYSTEM, USER, ANSWER, USER, ANSWER, USER), 45) == Plan(frozenset({1, 2}), 40)


def test_system_messages_stay_wherever_they_are() -> None:
    assert plan(read(SYSTEM, USER, SYSTEM, ANSWER, SYSTEM, USER), 1) == Plan(frozenset({1, 3}), 40)


def test_what_stands_before_the_first_question_goes_first() -> None:
    assert plan(read(ANSWER, USER, ANSWER, USER), 35) == Plan(frozenset({0}), 30)


def test_inside_one_long_exchange_the_oldest_calls_go() -> None:
    assert plan(read(USER, *LOOP, *LOOP, *LOOP, *LOOP), 35) == Plan(frozenset({1, 2}), 30)


def test_exchanges_go_before_calls_inside_the_last_one() -> None:
    conversation = read(USER, ANSWER, USER, *LOOP, *LOOP)
    assert plan(conversation, 30) == Plan(frozenset({0, 1}), 30)
    assert plan(conversation, 20) == Plan(frozenset({0, 1, 3}), 20)


def test_the_last_question_and_the_newest_group_stay_whatever_the_budget() -> None:
    assert plan(read(USER, ANSWER, USER, USER, *LOOP, *LOOP), 0) == Plan(frozenset({0, 1, 4}), 30)


def test_the_newest_messages_stay_with_their_exchange() -> None:
    conversation = read(USER, ANSWER, USER, ANSWER, USER)
    assert plan(conversation, 0, keep_last=2) == Plan(frozenset({0, 1}), 30)
    assert plan(conversation, 0, keep_last=3) == Plan(frozenset({0, 1}), 30)
    assert plan(conversation, 0, keep_last=4) == Plan(frozenset(), 50)


def test_the_first_messages_stay_with_the_answer_to_them() -> None:
    conversation = read(ANSWER, USER, *LOOP, *LOOP, ANSWER, USER, ANSWER, USER)
    assert plan(conversation, 0, keep_first=1) == Plan(frozenset({0, 2, 3, 5, 6}), 30)
    assert plan(conversation, 0, keep_first=2) == Plan(frozenset({0, 3, 5, 6}), 40)


def test_a_turn_with_something_unknown_stays_but_for_its_calls() -> None:
    unknown = {"role": "critic", "content": "?"}
    conversation = read(USER, *LOOP, unknown, ANSWER, USER, ANSWER, USER)
    assert plan(conversation, 0) == Plan(frozenset({1, 4, 5}), 40)


def test_words_beside_tool_results_stay_while_they_are_the_last() -> None:
    used = {"role": "assistant", "content": [{"type": "tool_use", "id": "t", "name": "f", "input": {}}]}
    result = {"type": "tool_result", "tool_use_id": "t", "content": "r"}
    plain = {"role": "user", "content": [result]}
    spoken = {"role": "user", "content": [result, {"type": "text", "text": "stop"}]}
    messages = [USER, used, spoken, used, plain, used, spoken, used, plain, used, plain]
    conversation = read_conversation(body(messages=messages), MESSAGES)
    assert conversation is not None
    assert plan(conversation, 0) == Plan(frozenset({1, 2, 4}), 30)
    # As the conversation grew, the first words were the last for a while, and went when others came.
    assert plan(conversation, 45, target=30) == Plan(frozenset({1, 2}), 40)


def test_a_block_is_cut_at_once_and_then_left_alone() -> None:
    turns: list[Any] = []
    left = []
    for _ in range(12):
        turns.append(USER)
        left.append(plan(read(*turns), 100, target=60).tokens)
        turns.append(ANSWER)
    assert left == [10, 30, 50, 70, 90, 50, 70, 90, 50, 70, 90, 50]


def test_a_block_does_not_fall_below_what_is_worth_caching() -> None:
    turns = [USER, ANSWER] * 3 + [USER]
    heavy = {2: 30, 3: 30}
    assert plan(read(*turns), 100, target=40, weights=heavy) == Plan(frozenset(range(4)), 30)
    assert plan(read(*turns), 100, target=40, floor=40, weights=heavy) == Plan(frozenset({0, 1}), 90)


def test_planning_is_linear() -> None:
    loops = LOOP * 10_000
    conversation = read(USER, ANSWER, USER, *loops)
    for target in (None, 7_500):
        started = time.perf_counter()
        planned = plan(conversation, 10_000, target=target)
        assert time.perf_counter() - started < 2
        assert planned.tokens <= 10_000
    overflowing = plan(conversation, 50, target=40, weights={2: 100})
    assert overflowing.tokens == 110
