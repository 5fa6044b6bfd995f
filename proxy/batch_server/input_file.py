"""The input file of a batch while it is worked on: checked once, then read line by line in any order.

Owns where its chunks begin and keeps the last few. Refuses to hold a file whole.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable

from proxy.batch_server.kit import Kit
from proxy.batch_server.lines import CheckedInput, InputLine, LineChecker, request_body
from proxy.batch_server.model import StoredFile

_KEPT_CHUNKS = 8
_QUICK_BYTES = 256 * 1024
"""A longer line is read in a thread: it takes some 15 ms per MiB."""


class InputGone(Exception):
    """The file, or a piece of it, is not there any more."""


class InputFile:
    """One input file. `InputGone` and `SealError` may come from every read."""

    def __init__(self, kit: Kit, file: StoredFile) -> None:
        self._kit = kit
        self._file = file
        self._starts: list[int] = []
        self._kept: OrderedDict[int, bytes] = OrderedDict()

    async def check(self, endpoint: str, is_wanted: Callable[[], bool]) -> CheckedInput | None:
        """Read the whole file and say what it is; `None` once nobody wants to know any more."""
        checker = LineChecker(endpoint)
        start = 0
        self._starts = []
        for index in range(self._file.chunk_count):
            if not is_wanted():
                return None
            chunk = await self._chunk(index)
            self._starts.append(start)
            start += len(chunk)
            await self._kit.in_thread(checker.feed, chunk)
        return await self._kit.in_thread(checker.finish)

    async def body(self, line: InputLine) -> bytes:
        """Return what is to be sent for a line, after `check`."""
        text = await self._read(line.offset, line.length)
        if len(text) > _QUICK_BYTES:
            return await self._kit.in_thread(request_body, text)
        return request_body(text)

    async def _read(self, offset: int, length: int) -> bytes:
        parts = []
        index = bisect_right(self._starts, offset) - 1
        skipped = offset - self._starts[index]
        while length > 0:
            part = (await self._chunk(index))[skipped : skipped + length]
            if not part:
                raise InputGone("the input file ends before the line does")
            parts.append(part)
            length -= len(part)
            index, skipped = index + 1, 0
        return parts[0] if len(parts) == 1 else b"".join(parts)

    async def _chunk(self, index: int) -> bytes:
        kept = self._kept.get(index)
        if kept is not None:
            self._kept.move_to_end(index)
            return kept
        chunk = await self._kit.insist(lambda: self._kit.store.chunk(self._file.id, index))
        if chunk is None:
            raise InputGone("the input file is not there any more")
        self._kept[index] = chunk
        while len(self._kept) > _KEPT_CHUNKS:
            self._kept.popitem(last=False)
        return chunk
