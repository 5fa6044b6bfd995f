"""Compare what Weir says beforehand about a request with what a live call then does.

`explanation` asks the admin API; `assert_it_came_true` looks at the answer, at the call that the recording
upstream got and at the record.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any
from urllib.parse import quote, unquote

from proxy.policy.model import PolicySet
from tests.support.chat import CHAT, PATH
from tests.support.raw_client import HeaderList, RawAnswer, RawClient
from tests.support.raw_upstream import Call, RawUpstream
from tests.support.weir import RunningWeir

_STRING = r'"(?:[^"\\]|\\.)*"'
_MEMBER = re.compile(rf"[\w*]+(?:;[a-z*][a-z0-9_.*-]*(?:=(?:{_STRING}|-?\d+))?)*")
_PARAMETER = re.compile(rf";([a-z*][a-z0-9_.*-]*)(?:=({_STRING}|-?\d+))?")
_STATUSES = {"unchanged", "skipped", "failed", "rejected"}


def explanation(proxy: RunningWeir, path: str, body: bytes, headers: HeaderList = ()) -> bytes:
    """Return the explanation of a request as the admin API has it."""
    host, _, port = proxy.admin_url.removeprefix("http://").rpartition(":")
    with RawClient((host, int(port))) as client:
        answer = client.request("POST", f"/explain?path={quote(path)}", body, headers)
    assert answer.status == 200, answer
    return answer.body


def leads_to(policies: PolicySet, url: str) -> PolicySet:
    """Return the same policies with every upstream's address replaced by `url`."""
    upstreams = {name: replace(upstream, base_url=url) for name, upstream in policies.upstreams.items()}
    return replace(policies, upstreams=upstreams)


def sent_body(explained: bytes) -> bytes:
    """Return the body that an explanation ends in, to the byte, if it is JSON."""
    return explained[explained.rindex(b',"body":') + len(b',"body":') : -1]


def steps_header(value: str | None) -> list[dict[str, Any]]:
    """Read `x-weir-steps` (RFC 9651) into the form of an explanation."""
    if value is None:
        return []
    members = _MEMBER.findall(value)
    assert ", ".join(members) == value, f"no list of tokens with parameters: {value}"
    return [_step(member) for member in members]


def _step(member: str) -> dict[str, Any]:
    name = member.split(";", 1)[0]
    status, detail = "applied", {}
    for key, value in _PARAMETER.findall(member):
        if not value:
            assert key in _STATUSES
            status = key
        else:
            detail[key] = _bare(value) if value.startswith('"') else int(value)
    return {"name": name, "status": status, "detail": detail}


def _bare(string: str) -> str:
    return unquote(string[1:-1].replace('\\"', '"').replace("\\\\", "\\"))


def reasoned(value: str | None) -> dict[str, str]:
    """Read `x-weir-urgency` or `x-weir-lane` into the form of an explanation, less how it then went."""
    match = re.fullmatch(rf"(\w+);(?: \w+=(?:[\w-]+|{_STRING});)* reason=({_STRING})", value or "")
    assert match is not None, value
    return {"value": match[1], "reason": _bare(match[2])}


def logged_step(step: dict[str, Any]) -> str:
    """Return a step as the access log has it."""
    detail = dict(step["detail"])
    reason = detail.pop("reason", "")
    words = [step["name"], step["status"], *(f"{key}={value}" for key, value in detail.items())]
    return ";".join(words) + (f" ({reason})" if reason else "")


def assert_it_came_true(
    explained: bytes, answer: RawAnswer, calls: list[Call], record: dict[str, Any]
) -> dict[str, Any]:
    """Check a live call against its explanation, which is returned. `calls` are those that it caused."""
    told: dict[str, Any] = json.loads(explained)
    if "rejected" in told:
        refusal = told["rejected"]
        error = json.loads(answer.body)["error"]
        assert (answer.status, record["status"]) == (refusal["status"], refusal["status"])
        assert {key: error[key] for key in ("code", "message", "param")} == {
            key: refusal[key] for key in ("code", "message", "param")
        }
        assert record["error"] == refusal["code"]
        assert answer.header("x-weir-route") == record["route"] == refusal.get("route")
        steps = [
            {key: step[key] for key in ("name", "status", "detail")} for step in refusal.get("steps", [])
        ]
        assert steps_header(answer.header("x-weir-steps")) == steps
        assert record["steps"] == [logged_step(step) for step in steps]
        assert calls == [], "what is refused is not sent"
        return told
    steps = [{key: step[key] for key in ("name", "status", "detail")} for step in told["steps"]]
    assert answer.header("x-weir-route") == told["route"]
    assert steps_header(answer.header("x-weir-steps")) == steps
    assert reasoned(answer.header("x-weir-urgency")) == told["urgency"]
    assert reasoned(answer.header("x-weir-lane")) == told["lane"]
    assert record["route"] == told["route"]
    assert record["steps"] == [logged_step(step) for step in steps]
    assert {"value": record["urgency"], "reason": record["urgency_reason"]} == told["urgency"]
    assert {"value": record["lane"], "reason": record["lane_reason"]} == told["lane"]
    assert record["upstream"] == told["upstream"]
    assert record["status"] == answer.status
    assert len(calls) == 1
    sent = calls[0].body
    if isinstance(told["body"], str):
        assert sent.decode("utf-8", "replace") == told["body"]
    else:
        assert sent == sent_body(explained)
    return told


@dataclass(frozen=True, slots=True)
class Asked:
    """A request."""

    body: bytes = CHAT
    path: str = PATH
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Lived:
    """What was explained about a request, and what then happened to it."""

    explained: bytes
    answer: RawAnswer
    calls: list[Call]


def live_through(proxy: RunningWeir, upstream: RawUpstream, asked: Asked) -> Lived:
    """Explain a request, then send it."""
    lines = list(asked.headers.items())
    explained = explanation(proxy, asked.path, asked.body, lines)
    calls = len(upstream.calls)
    with proxy.client() as client:
        got = client.request("POST", asked.path, asked.body, lines)
    return Lived(explained, got, upstream.calls[calls:])


def compared(proxy: RunningWeir, lived: Sequence[Lived]) -> list[dict[str, Any]]:
    """Compare each explanation with what happened, log included; return the explanations."""
    records = {record["request_id"]: record for record in proxy.log(len(lived))}
    assert len(records) == len(lived)
    return [
        assert_it_came_true(
            each.explained, each.answer, each.calls, records[each.answer.header("x-weir-request-id")]
        )
        for each in lived
    ]


def ask_all(proxy: RunningWeir, upstream: RawUpstream, asked: Iterable[Asked]) -> list[dict[str, Any]]:
    """Explain and send requests, compare, and return the explanations."""
    return compared(proxy, [live_through(proxy, upstream, each) for each in asked])
