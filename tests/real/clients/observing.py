"""What the Python programs of this folder share: scenarios to go through, a report of what the SDK showed.

A program is started with the name of the server behind its base URL, goes through the scenarios that suit
that server, and prints as its last line one JSON object: scenario -> what the SDK handed to its user. It
neither knows nor says where requests go: that is in the environment. An exception that a scenario does not
expect ends the program.
"""

from __future__ import annotations

import asyncio
import dataclasses
import inspect
import json
import sys
from collections.abc import Callable
from typing import Any

SIMULATOR, LLAMA = "simulator", "llama.cpp"


class Scenarios:
    """The scenarios of one program, in order."""

    def __init__(self) -> None:
        self._known: list[tuple[tuple[str, ...], Callable[[], Any]]] = []

    def on(self, *servers: str) -> Callable[[Callable[[], Any]], Callable[[], Any]]:
        """Register a scenario, synchronous or not, for these servers."""

        def register(scenario: Callable[[], Any]) -> Callable[[], Any]:
            self._known.append((servers, scenario))
            return scenario

        return register

    def main(self) -> None:
        """Go through the scenarios and print what was seen."""
        seen = {}
        for servers, scenario in self._known:
            if sys.argv[1] in servers:
                shown = scenario()
                if inspect.iscoroutine(shown):
                    shown = asyncio.run(shown)
                seen[scenario.__name__] = plain(shown)
        # A line of its own: some SDKs talk on standard output.
        print("\n" + json.dumps(seen))


def plain(value: Any) -> Any:
    """Return `value` as JSON can hold it: models as the fields that they carry, unknown ones included."""
    if hasattr(value, "model_dump"):
        return plain(value.model_dump(mode="json", warnings=False))
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return plain({field.name: getattr(value, field.name) for field in dataclasses.fields(value)})
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if value is None or isinstance(value, (str, int, float, bool)):
        return value
    return repr(value)


def refusal(call: Callable[[], Any]) -> dict[str, Any]:
    """Return what the exception says that `call` must raise."""
    try:
        call()
    except Exception as problem:
        said = {
            name: getattr(problem, name, None) for name in ("status_code", "code", "param", "type", "body")
        }
        return {"raised": type(problem).__name__, "text": str(problem), **said}
    raise AssertionError("nothing was raised")


def read_until_it_breaks(stream: Any) -> dict[str, Any]:
    """Read a stream that is to break off. Says how far it came and that it was no ordinary end.

    Not which exception it was: a direct connection shows a broken socket, Weir an error event.
    """
    read = []
    try:
        for item in stream:
            read.append(item)
    except Exception:
        return {"read": read, "broke": True}
    return {"read": read, "broke": False}
