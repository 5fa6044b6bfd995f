"""The table of moves: complete, closed, and the same in the documentation."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from proxy.jobs.model import ENDED_JOB_STATES, LIVE_JOB_STATES, BatchState, JobState
from proxy.jobs.transitions import (
    BATCH_TRANSITIONS,
    ENDING,
    JOB_TRANSITIONS,
    LEAVING,
    BatchEvent,
    IllegalTransition,
    JobEvent,
    batch_target,
    job_target,
    table_rows,
)

DOCS = Path(__file__).resolve().parents[3] / "docs" / "jobs.md"


def test_every_event_is_in_the_table() -> None:
    assert set(JOB_TRANSITIONS) == set(JobEvent)
    assert set(BATCH_TRANSITIONS) == set(BatchEvent)


def test_every_legal_move_leads_where_the_table_says() -> None:
    for event, moves in JOB_TRANSITIONS.items():
        for state, target in moves.items():
            assert job_target(event, state) is target
    for batch_event, batch_moves in BATCH_TRANSITIONS.items():
        for batch_state, batch_end in batch_moves.items():
            assert batch_target(batch_event, batch_state) is batch_end


def test_every_other_move_raises() -> None:
    for event in JobEvent:
        for state in set(JobState) - JOB_TRANSITIONS[event].keys():
            with pytest.raises(IllegalTransition, match=state.value):
                job_target(event, state)
    for batch_event in BatchEvent:
        for batch_state in set(BatchState) - BATCH_TRANSITIONS[batch_event].keys():
            with pytest.raises(IllegalTransition, match=batch_state.value):
                batch_target(batch_event, batch_state)


def test_every_state_can_be_reached_from_acceptance() -> None:
    reached = {JobState.ACCEPTED}
    for _ in JobState:
        reached |= {
            target
            for moves in JOB_TRANSITIONS.values()
            for state, target in moves.items()
            if state in reached
        }
    assert reached == set(JobState)
    batches = {BatchState.INTENT}
    for _ in BatchState:
        batches |= {
            target
            for moves in BATCH_TRANSITIONS.values()
            for state, target in moves.items()
            if state in batches
        }
    assert batches == set(BatchState)


def test_a_live_job_can_always_be_ended_and_an_ended_one_only_by_an_operator_revived() -> None:
    for event in (JobEvent.CANCEL, JobEvent.EXPIRE, JobEvent.FAIL, JobEvent.RESCUE):
        assert set(JOB_TRANSITIONS[event]) == LIVE_JOB_STATES
    revivals = {
        event
        for event, moves in JOB_TRANSITIONS.items()
        for state, target in moves.items()
        if state in ENDED_JOB_STATES and target in LIVE_JOB_STATES
    }
    assert revivals == {JobEvent.RESET}


def test_endings_lead_to_one_ending_each() -> None:
    for event in ENDING:
        (ending,) = set(JOB_TRANSITIONS[event].values())
        assert ending in ENDED_JOB_STATES - {JobState.DELIVERED}
    assert {JobEvent.RETURN, JobEvent.RETRY} == LEAVING - ENDING


def test_the_documented_table_is_the_table() -> None:
    text = DOCS.read_text(encoding="utf-8")
    rows = re.findall(r"^\| (job|batch) \| `(\w+)` \| (.+?) \| (.+?) \|$", text, re.MULTILINE)
    documented = {
        (kind, event, source, target.strip("`") if target != "the same" else source)
        for kind, event, sources, target in rows
        for source in re.findall(r"`(\w+)`", sources)
    }
    assert documented == set(table_rows())
