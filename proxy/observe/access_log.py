"""The access log: one JSON line per exchange, written by a thread so that a slow sink delays nobody.

Lines wait in a bounded buffer; what does not fit is dropped, counted and marked by a line of its own.
"""

from __future__ import annotations

import json
import os
import re
import sys
import threading
from typing import Any

import orjson

_MAX_BUFFERED_BYTES = 8 * 1024 * 1024
_FLUSH_SECONDS = 0.05
_NEEDS_QUOTES = re.compile(r'[\s"=\\\x00-\x1f\x7f]')


class AccessLog:
    """Writes records to a file descriptor, `None` for nowhere."""

    def __init__(self, descriptor: int | None, as_text: bool = False) -> None:
        self._descriptor = descriptor
        self._as_text = as_text
        self._lines: list[bytes] = []
        self._buffered_bytes = 0
        self._lock = threading.Lock()
        self._wakes = threading.Event()
        self._is_closed = False
        self._dropped_since_mark = 0
        self.dropped = 0
        self._thread: threading.Thread | None = None
        if descriptor is not None:
            self._thread = threading.Thread(target=self._run, name="access log", daemon=True)
            self._thread.start()

    @property
    def is_on(self) -> bool:
        """Whether records go anywhere."""
        return self._descriptor is not None

    @property
    def is_json(self) -> bool:
        """Whether `write_line` may be used."""
        return self._descriptor is not None and not self._as_text

    def write(self, record: dict[str, Any]) -> None:
        """Take one record; never blocks on the sink."""
        if self._descriptor is None:
            return
        self.write_line(_text(record) if self._as_text else _json(record))

    def write_line(self, line: bytes) -> None:
        """Take one line, its end included."""
        with self._lock:
            if self._buffered_bytes + len(line) > _MAX_BUFFERED_BYTES:
                self.dropped += 1
                self._dropped_since_mark += 1
                return
            self._lines.append(line)
            self._buffered_bytes += len(line)

    def close(self, timeout_seconds: float = 2.0) -> None:
        """Write what is buffered, for at most `timeout_seconds`, and stop."""
        self._is_closed = True
        self._wakes.set()
        if self._thread is not None:
            self._thread.join(timeout_seconds)

    def _run(self) -> None:
        while True:
            is_last = self._is_closed
            if not is_last:
                self._wakes.wait(_FLUSH_SECONDS)
            self._flush()
            if is_last:
                return

    def _flush(self) -> None:
        with self._lock:
            lines, self._lines = self._lines, []
            dropped, self._dropped_since_mark = self._dropped_since_mark, 0
        if dropped:
            lines.append(orjson.dumps({"dropped_lines": dropped}, option=orjson.OPT_APPEND_NEWLINE))
        if lines:
            self._write_all(b"".join(lines))
            with self._lock:
                self._buffered_bytes = sum(map(len, self._lines))

    def _write_all(self, data: bytes) -> None:
        view = memoryview(data)
        while view and self._descriptor is not None:
            try:
                view = view[os.write(self._descriptor, view) :]
            except OSError:
                with self._lock:
                    self.dropped += data.count(b"\n")
                return


def _json(record: dict[str, Any]) -> bytes:
    try:
        return orjson.dumps(record, option=orjson.OPT_APPEND_NEWLINE)
    except TypeError:
        # A caller's text may hold lone surrogates, which orjson refuses.
        return json.dumps(record).encode("ascii") + b"\n"


def _text(record: dict[str, Any]) -> bytes:
    """Return a record as `key=value` words (logfmt), for people who watch a terminal; nothing empty."""
    words = [f"{key}={_word(value)}" for key, value in record.items() if value not in (None, "", (), [], {})]
    return (" ".join(words) + "\n").encode("utf-8", "backslashreplace")


def _word(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    text = ",".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)
    # JSON's escapes keep a caller's line breaks and quotes from looking like other words or lines.
    return json.dumps(text, ensure_ascii=False) if _NEEDS_QUOTES.search(text) else text


def open_log(destination: str) -> int | None:
    """Return where to write for a path, `-` (standard output) or `off`. Raises OSError."""
    if destination == "off":
        return None
    if destination == "-":
        return sys.stdout.fileno()
    return os.open(destination, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
