"""Telling the end of a job to its webhook: one claimed notice, one try, what came of it noted.

A crash between the try and its note tells it again, under the same event id. Owns no schedule and no health
of addresses: those are the sender's.
"""

from __future__ import annotations

from proxy.jobs.model import Job, Lease
from proxy.jobs.notices import event_of, needs_answer, until
from proxy.jobs.sealing import SealError
from proxy.jobs.worker.kit import Kit
from proxy.webhooks.sender import Sender


async def tell(kit: Kit, sender: Sender, lease: Lease, job: Job) -> None:
    """Tell the end of a claimed job, and note what became of it."""
    answer = None
    if needs_answer(job):
        try:
            answer = await kit.insist(lambda: kit.store.answer(job.id))
        except SealError:
            pass  # another key sealed it: who polls the response learns no more of it either
    told = await sender.tell(job.webhook, event_of(job, answer), job.notice_tries, until(job))
    await kit.insist(lambda: kit.store.noted(lease, told.due, told.note, is_try=told.is_try))
