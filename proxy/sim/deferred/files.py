"""The provider's files: what callers uploaded and what batches wrote.

It owns who sees a file, how long it lives, and how much is kept: a provider that is full refuses, it does not
forget what it has accepted. Files are kept in memory.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

from proxy.core.clock import Clock
from proxy.sim.deferred.rules import FileRules
from proxy.sim.errors import ApiError
from proxy.sim.journal import Journal

_KIND = "file"


@dataclass(frozen=True, slots=True)
class StoredFile:
    """A file. Times are seconds since the epoch; `caller` stands for the key that owns it."""

    id: str
    caller: str
    filename: str
    purpose: str
    content: bytes
    created_at: float
    expires_at: float | None = None

    def as_object(self, is_processed: bool = True) -> dict[str, object]:
        """Return OpenAI's file object."""
        return {
            "id": self.id,
            "object": "file",
            "bytes": len(self.content),
            "created_at": int(self.created_at),
            "expires_at": None if self.expires_at is None else int(self.expires_at),
            "filename": self.filename,
            "purpose": self.purpose,
            "status": "processed" if is_processed else "uploaded",
            "status_details": None,
        }


class FileBook:
    """The files of one provider. A caller never sees another's: they do not exist for it."""

    def __init__(self, rules: FileRules, clock: Clock, journal: Journal) -> None:
        self._rules = rules
        self._clock = clock
        self._journal = journal
        self._files: OrderedDict[str, StoredFile] = OrderedDict()
        self._bytes = 0
        for entry in journal.all_of(_KIND):
            self._hold(StoredFile(entry.name, content=entry.raw, **entry.value))

    def keep(self, file: StoredFile, is_result: bool = False) -> None:
        """Keep a file. Raises ApiError where the provider is full; what a batch has written always fits."""
        if not is_result:
            self.check_room(len(file.content))
        self._hold(file)
        self._journal.put(
            _KIND,
            file.id,
            {
                "caller": file.caller,
                "filename": file.filename,
                "purpose": file.purpose,
                "created_at": file.created_at,
                "expires_at": file.expires_at,
            },
            file.content,
        )

    def check_room(self, size_bytes: int) -> None:
        """Raise ApiError (400) where there is no room for another file."""
        self._forget_expired()
        is_full = len(self._files) >= self._rules.max_files
        if is_full or self._bytes + size_bytes > self._rules.total_bytes:
            message = "You have reached the storage limit for files. Delete some before you add more."
            raise ApiError(400, message, code="storage_limit_exceeded")

    def find(self, caller: str, file_id: str) -> StoredFile:
        """Return a caller's file. Raises ApiError (404) if there is none by that id."""
        file = self._files.get(file_id)
        if file is not None and self._is_expired(file):
            self._let_go(file)
            file = None
        if file is None or file.caller != caller:
            raise ApiError(404, f"No such File object: {file_id}", param="id")
        return file

    def remove(self, caller: str, file_id: str) -> None:
        """Delete a caller's file. Raises ApiError (404) if there is none by that id."""
        self._let_go(self.find(caller, file_id))

    def of(self, caller: str) -> Sequence[StoredFile]:
        """Return a caller's files, oldest first."""
        self._forget_expired()
        return [file for file in self._files.values() if file.caller == caller]

    def is_processed(self, file: StoredFile) -> bool:
        """Tell whether a file may be used yet."""
        return self._clock.wall() >= file.created_at + self._rules.processing_seconds

    def _hold(self, file: StoredFile) -> None:
        self._files[file.id] = file
        self._bytes += len(file.content)

    def _let_go(self, file: StoredFile) -> None:
        del self._files[file.id]
        self._bytes -= len(file.content)
        self._journal.drop(_KIND, file.id)

    def _is_expired(self, file: StoredFile) -> bool:
        return file.expires_at is not None and file.expires_at <= self._clock.wall()

    def _forget_expired(self) -> None:
        for file in [file for file in self._files.values() if self._is_expired(file)]:
            self._let_go(file)
