"""Owns which requests are uploads of files: what they carry is for nobody on the way to read. Pure.

Steps edit parameters of calls. An upload has none: refusing a large one because no step could look into it
(or holding it until it is whole) would protect nothing.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from proxy.policy.model import OnOversize, Route

HeaderLookup = Callable[[str], str | None]

_PATH = re.compile(r"(?:.*/v1|/openai|)/(?:files|uploads/[^/]+/parts)", re.IGNORECASE)
_ENDS = ("/files", "/parts")
_EXPLAIN = "x-weir-explain"


def upload_routes(candidates: tuple[Route, ...], path: str, header: HeaderLookup) -> tuple[Route, ...] | None:
    """Return the routes that an upload may take, which then passes unread; `None`: it is looked at.

    Uploads are OpenAI's files, and parts of them, sent as a form: anything else is looked at as on every
    other path, since a server may take it for a call. So is an upload whose size a route limits
    (`on_oversize: reject`), and one that asks what would happen. Routes that ask something of a JSON body are
    left out: a form never has it.
    """
    if not path.lower().endswith(_ENDS) or _PATH.fullmatch(path) is None:
        return None
    if not (header("content-type") or "").lstrip().lower().startswith("multipart/form-data"):
        return None
    if header(_EXPLAIN) is not None or any(route.on_oversize is OnOversize.REJECT for route in candidates):
        return None
    return tuple(route for route in candidates if not route.match.needs_body)
