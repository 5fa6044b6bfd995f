"""Telling the end of a served batch to its webhook, in OpenAI's words: `batch.completed` and its kin.

A crash between the call and its note tells it again, under the same event id. Owns no schedule and no health
of addresses: those are the sender's.
"""

from __future__ import annotations

from proxy.batch_server.model import BatchLease, ServedBatch
from proxy.batch_server.store import BatchStore
from proxy.jobs.store import LeaseLost
from proxy.webhooks.event import Event
from proxy.webhooks.schedule import told_until
from proxy.webhooks.sender import Sender


def event_of(batch: ServedBatch) -> Event:
    """Return the event of an ended batch."""
    return Event(f"batch.{batch.progress.status.value}", batch.id, _ended(batch))


class Notices:
    """What the executor calls with a claimed batch whose notice is due: one try, and its outcome noted."""

    def __init__(self, store: BatchStore, sender: Sender) -> None:
        self._store = store
        self._sender = sender

    async def tell(self, batch: ServedBatch, lease: BatchLease) -> None:
        """Tell an end. Raises `StoreUnavailable`: then it is told again when the lease is over."""
        until = told_until(_ended(batch), batch.purge_at)
        told = await self._sender.tell(batch.webhook, event_of(batch), batch.notice_tries, until)
        try:
            await self._store.noted(lease, told.due)
        except LeaseLost:
            pass  # somebody else tells it meanwhile


def _ended(batch: ServedBatch) -> float:
    return batch.created if batch.progress.ended_at is None else batch.progress.ended_at
