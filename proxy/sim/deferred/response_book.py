"""Stored responses: those that were answered at once, and those that come about in the background.

    queued ──► in_progress ──► completed | incomplete | failed
       └────────────┴────► cancelled

It owns the records, who sees them and how long. It refuses to generate: background_work does.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from proxy.core.clock import Clock
from proxy.sim.errors import ApiError
from proxy.sim.journal import Journal

_KIND = "response"
_MAX_RESPONSES = 4_000
_FINAL = ("completed", "incomplete", "failed", "cancelled")


@dataclass(slots=True)
class StoredResponse:
    """A response as a caller may retrieve it. Times are seconds since the epoch.

    value           the response object as it stands, `status` included
    body            the request, for work that is still to be done; None for one that was answered at once
    body_hash       under which the work is counted
    identity_key    what its ids are made from
    tier            what it is billed as
    starts_at       when it leaves the queue
    ends_at         when it is finished; None as long as it is queued
    faults          what was asked of this response alone, by field of `Faults`
    expires_at      when it is forgotten; None = when there are too many
    """

    id: str
    caller: str
    value: dict[str, Any]
    body: dict[str, Any] | None = None
    body_hash: str = ""
    identity_key: str = ""
    created_at: float = 0.0
    tier: str = "default"
    starts_at: float = 0.0
    started_at: float | None = None
    ends_at: float | None = None
    faults: dict[str, Any] = field(default_factory=dict)
    expires_at: float | None = None

    @property
    def status(self) -> str:
        """Return the status that the object shows."""
        return str(self.value["status"])

    @property
    def is_final(self) -> bool:
        """Tell whether nothing more happens."""
        return self.status in _FINAL


class ResponseBook:
    """The stored responses of one provider. A caller never sees another's: they do not exist for it."""

    def __init__(self, clock: Clock, journal: Journal) -> None:
        self._clock = clock
        self._journal = journal
        self._responses: OrderedDict[str, StoredResponse] = OrderedDict()
        self._unfinished: dict[str, StoredResponse] = {}
        for entry in journal.all_of(_KIND):
            self._hold(StoredResponse(**entry.value))

    def keep(self, response: StoredResponse) -> None:
        """Keep a response as it is now; of too many finished ones the oldest is forgotten."""
        self._hold(response)
        if self._journal.is_on:
            self._journal.put(_KIND, response.id, asdict(response))
        if len(self._responses) > _MAX_RESPONSES:
            oldest = next((found for found in self._responses.values() if found.is_final), response)
            self._let_go(oldest)

    def check_room(self) -> None:
        """Raise ApiError (429) where no more work can be taken on."""
        if len(self._unfinished) >= _MAX_RESPONSES - 1:
            raise ApiError(429, "Too many responses are queued. (simulated)", "requests", None, "queue_full")

    def find(self, caller: str, response_id: str) -> StoredResponse:
        """Return a caller's response. Raises ApiError (404) if there is none by that id."""
        response = self._responses.get(response_id)
        if response is not None and response.is_final and self._is_expired(response):
            self._let_go(response)
            response = None
        if response is None or response.caller != caller:
            raise ApiError(404, f"Response with id '{response_id}' not found.")
        return response

    def remove(self, caller: str, response_id: str) -> None:
        """Delete a caller's response; one that is not finished ends. Raises ApiError (404) as `find` does."""
        self._let_go(self.find(caller, response_id))

    def has(self, response: StoredResponse) -> bool:
        """Tell whether a response is still there: it may be deleted while it is worked on."""
        return self._responses.get(response.id) is response

    def unfinished(self) -> Sequence[StoredResponse]:
        """Return the responses of all callers that are queued or in progress, oldest first."""
        return tuple(self._unfinished.values())

    def _is_expired(self, response: StoredResponse) -> bool:
        return response.expires_at is not None and response.expires_at <= self._clock.wall()

    def _hold(self, response: StoredResponse) -> None:
        self._responses[response.id] = response
        if response.is_final:
            self._unfinished.pop(response.id, None)
        else:
            self._unfinished[response.id] = response

    def _let_go(self, response: StoredResponse) -> None:
        self._responses.pop(response.id, None)
        self._unfinished.pop(response.id, None)
        self._journal.drop(_KIND, response.id)
