"""A deferred response in the words of the Responses API: its id, its object while it waits, its end. Pure.

Shapes: `openai` 3.57 types/responses/response.py.
"""

from __future__ import annotations

from typing import Any

import orjson

from proxy.core.document import Document, DocumentError
from proxy.core.json_edits import quoted
from proxy.core.json_values import decode
from proxy.jobs.model import Answer, Job, JobState
from proxy.jobs.response_ids import job_id_of, response_id

_ECHOED = (
    "instructions",
    "max_output_tokens",
    "max_tool_calls",
    "metadata",
    "model",
    "parallel_tool_calls",
    "previous_response_id",
    "prompt_cache_key",
    "reasoning",
    "safety_identifier",
    "store",
    "temperature",
    "text",
    "tool_choice",
    "tools",
    "top_p",
    "truncation",
    "user",
)
"""Fields of a request that its response repeats."""

_DEFAULTS: dict[str, Any] = {
    "instructions": None,
    "max_output_tokens": None,
    "metadata": {},
    "parallel_tool_calls": True,
    "previous_response_id": None,
    "reasoning": {"effort": None, "summary": None},
    "store": True,
    "temperature": 1.0,
    "text": {"format": {"type": "text"}},
    "tool_choice": "auto",
    "tools": [],
    "top_p": 1.0,
    "truncation": "disabled",
}


def is_own_id(value: object) -> bool:
    """Tell whether a value of a body is the id of a deferred response."""
    return isinstance(value, str) and job_id_of(value) is not None


def continues_deferred(document: Document | None) -> bool:
    """Tell whether a request continues a deferred response."""
    return document is not None and is_own_id(document.value("previous_response_id"))


def response_object(job: Job, request: bytes | None, answer: Answer | None) -> bytes:
    """Return the response as its API shows it now: with the provider's answer once there is one."""
    told = _told_answer(job, answer)
    return _own_object(job, request, answer) if told is None else told


def deleted_object(job_id: str) -> bytes:
    """Return what the deletion of a response is answered with."""
    return orjson.dumps({"id": response_id(job_id), "object": "response", "deleted": True})


def _told_answer(job: Job, answer: Answer | None) -> bytes | None:
    """Return the provider's response under the id that the caller knows, byte for byte but for that."""
    if answer is None or answer.status >= 300:
        return None
    try:
        document = Document.parse(answer.body)
    except DocumentError:
        return None
    document = document.set("id", quoted(response_id(job.id)))
    if document.get("background") is not None:
        document = document.set("background", b"true")
    return document.to_bytes()


def _own_object(job: Job, request: bytes | None, answer: Answer | None) -> bytes:
    asked = decode(request or b"", {})
    echoed = {name: asked[name] for name in _ECHOED if isinstance(asked, dict) and name in asked}
    status = _status(job)
    told: dict[str, Any] = {
        "id": response_id(job.id),
        "object": "response",
        "created_at": int(job.created),
        "status": status,
        "background": True,
        "error": _error(job, answer) if status == "failed" else None,
        "incomplete_details": None,
        **_DEFAULTS,
        "model": job.model,
        "output": [],
        "usage": None,
        **echoed,
    }
    try:
        return orjson.dumps(told)
    except TypeError:
        # A lone surrogate somewhere in what the caller sent: nothing depends on the echo.
        for name in echoed:
            told[name] = _DEFAULTS.get(name)
        return orjson.dumps(told | {"model": job.model.encode("utf-8", "replace").decode()})


def _status(job: Job) -> str:
    ended = job.ended_as or job.state
    match ended:
        case JobState.ACCEPTED | JobState.PACKED:
            return "queued"
        case JobState.SUBMITTED:
            return "in_progress"
        case JobState.CANCELLED:
            return "cancelled"
        case _:
            return "failed"


def _error(job: Job, answer: Answer | None) -> dict[str, str]:
    """Return why; the API has few codes, and `server_error` stands for all others."""
    said = decode(answer.body) if answer is not None else None
    error = said.get("error") if isinstance(said, dict) else None
    if isinstance(error, dict) and isinstance(error.get("message"), str):
        is_request = answer is not None and 400 <= answer.status < 500 and answer.status != 429
        code = "invalid_prompt" if is_request else "server_error"
        return {"code": code, "message": error["message"].encode("utf-8", "replace").decode()}
    message = job.error.message if job.error is not None else "the response could not be made"
    return {"code": "server_error", "message": message}
