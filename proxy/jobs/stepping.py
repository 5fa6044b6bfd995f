"""What is too much for one step of a store, cut into several.

A step holds a lock or a whole server, and others wait for it. Owns the size of a step and how results of
several are joined. A crash between two steps is harmless: the batch moves with the last one, and what was
refused or applied before is so again.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from proxy.jobs.changes import Committed, JobChange

STEP_JOBS = 1000
"""How many jobs one step moves at most; what is smaller is atomic."""


def in_steps(job_ids: Sequence[str]) -> Iterator[tuple[str, ...]]:
    """Yield the ids in steps, at least one."""
    ids = tuple(dict.fromkeys(job_ids))
    for start in range(0, len(ids) or 1, STEP_JOBS):
        yield ids[start : start + STEP_JOBS]


def changes_in_steps(changes: Sequence[JobChange]) -> Iterator[tuple[list[JobChange], bool]]:
    """Yield (changes of one step, is it the last), at least one.

    Raises `ValueError` for two changes of one job, before anything was yielded.
    """
    ids = [job_id for change in changes for job_id in change.job_ids]
    if len(set(ids)) < len(ids):
        raise ValueError("two changes for one job in one step")
    some: list[JobChange] = []
    room = STEP_JOBS
    for change in changes:
        left = change.job_ids
        while left:
            if not room:
                yield some, False
                some, room = [], STEP_JOBS
            some.append(replace(change, job_ids=left[:room]))
            taken = len(some[-1].job_ids)
            left, room = left[taken:], room - taken
    yield some, True


def joined(before: Committed | None, after: Committed) -> Committed:
    """Return what two steps did together."""
    if before is None:
        return after
    return Committed(after.batch, before.applied + after.applied, {**before.refused, **after.refused})
