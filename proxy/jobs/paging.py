"""Cursors of job lists: newest first, by creation and id, so that what arrives meanwhile moves nothing."""

from __future__ import annotations

from proxy.jobs.model import Job


def cursor_after(job: Job) -> str:
    """Return the cursor of the page that begins behind a job."""
    return f"{job.created!r}_{job.id}"


def read_cursor(cursor: str) -> tuple[float, str]:
    """Return creation and id that a cursor stands for. Raises `ValueError` for text that is none."""
    created, mark, job_id = cursor.partition("_")
    if not mark or not job_id:
        raise ValueError("this is not the cursor of a page of jobs")
    return float(created), job_id


def is_beyond(job: Job, cursor: str | None) -> bool:
    """Whether a job stands behind a cursor."""
    return cursor is None or (job.created, job.id) < read_cursor(cursor)
