"""The id by which a caller knows a deferred response: made from its job's, nothing is remembered. Pure.

Whoever meets it elsewhere (a second Weir in front) takes it for one of the provider's.
"""

from __future__ import annotations

import re

_PREFIX = "resp_weir_"
_OWN_ID = re.compile(r"resp_weir_([0-9a-f]{32})")


def response_id(job_id: str) -> str:
    """Return the id by which a caller knows a deferred response."""
    return _PREFIX + job_id


def job_id_of(response: str) -> str | None:
    """Return the id of the job behind a response id, `None` for one that is not ours."""
    found = _OWN_ID.fullmatch(response)
    return None if found is None else found[1]
