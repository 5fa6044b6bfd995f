"""Pages of a list in OpenAI's shape: `limit`, `after`, `order`.

It owns the cursor: the last id of the page before. It refuses to know what is listed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from proxy.sim.errors import invalid

T = TypeVar("T")


def read_limit(query: Mapping[str, str], default: int, high: int) -> int:
    """Return the page size that a query asks for. Raises ApiError (400) unless it is in 1…`high`."""
    given = query.get("limit", str(default))
    if not given.isascii() or not given.isdigit() or not 1 <= int(given) <= high:
        raise invalid("limit", f"Invalid 'limit': expected an integer in 1…{high}, but got '{given}'.")
    return int(given)


def page_of(
    things: Sequence[T], query: Mapping[str, str], limit: int, id_of: Callable[[T], str]
) -> tuple[Sequence[T], bool]:
    """Return the page of `things` that follows the cursor, and whether more follow it.

    A cursor that is not among them raises ApiError (400).
    """
    start = 0
    after = query.get("after")
    if after is not None:
        start = next((index + 1 for index, thing in enumerate(things) if id_of(thing) == after), -1)
        if start < 0:
            raise invalid("after", f"Invalid 'after': no object with id '{after}' in this list.")
    return things[start : start + limit], len(things) > start + limit


def list_object(items: Sequence[Mapping[str, object]], has_more: bool) -> dict[str, object]:
    """Return the list object of a page."""
    return {
        "object": "list",
        "data": list(items),
        "first_id": items[0]["id"] if items else None,
        "last_id": items[-1]["id"] if items else None,
        "has_more": has_more,
    }
