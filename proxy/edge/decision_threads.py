"""The few threads in which long bodies are decided about, and how much may wait for them.

Their own, so that no caller can hold up what shares the event loop's default ones (resolving names, reading
policies); few, since what decides holds the interpreter most of the time; daemons, since a process that ends
waits for nobody's long body. What finds no room is told at once.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Executor, Future
from queue import SimpleQueue
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

THREADS = 2
MAX_WAITING = 64
MAX_WAITING_BYTES = 128 * 1024 * 1024
"""Of bodies as they came; a single body may have any size that its route allows."""


class DecisionThreads(Executor):
    """Runs decisions in the order in which they came; threads start with the first one."""

    def __init__(self, threads: int = THREADS) -> None:
        self._most_threads = threads
        self._threads: list[threading.Thread] = []
        self._work: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._is_closed = False
        self._claims = 0
        self._claimed_bytes = 0

    @property
    def waiting(self) -> int:
        """How many bodies have taken room."""
        return self._claims

    def claim(self, body_bytes: int) -> bool:
        """Take room for a body, to be given back by `release`; `False` if there is none. Not thread-safe."""
        if self._claims >= MAX_WAITING:
            return False
        if self._claims and self._claimed_bytes + body_bytes > MAX_WAITING_BYTES:
            return False
        self._claims += 1
        self._claimed_bytes += body_bytes
        return True

    def release(self, body_bytes: int) -> None:
        """Give back the room of a body."""
        self._claims -= 1
        self._claimed_bytes -= body_bytes

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Run a call in one of the threads. Raises RuntimeError once closed."""
        if self._is_closed:
            raise RuntimeError("no more decisions are made")
        future: Future[T] = Future()

        def work() -> None:
            if not future.set_running_or_notify_cancel():
                return
            try:
                result = fn(*args, **kwargs)
            except BaseException as problem:
                future.set_exception(problem)
            else:
                future.set_result(result)

        self._work.put(work)
        if len(self._threads) < self._most_threads:
            name = f"decide {len(self._threads) + 1}"
            thread = threading.Thread(target=self._run, name=name, daemon=True)
            self._threads.append(thread)
            thread.start()
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Take no more work and let idle threads end; never waits for a decision."""
        if not self._is_closed:
            self._is_closed = True
            for _ in self._threads:
                self._work.put(None)

    def _run(self) -> None:
        while (work := self._work.get()) is not None:
            work()
            # The loop would keep the last body until the next one comes.
            del work
