"""What Weir says in headers is always valid HTTP and valid structured fields, whatever it has to say."""

from __future__ import annotations

import re
from urllib.parse import unquote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.core.decision import Lane, LaneDecision, StepReport, StepStatus, Urgency, UrgencyDecision
from proxy.core.exchange import Exchange
from proxy.core.usage import Usage
from proxy.edge.report import EXPOSED, report_headers, timing_comment
from proxy.http.head import ResponseHead
from proxy.http.limits import ClientLimits
from proxy.http.response_reader import ResponseReader
from proxy.policy.model import HeaderLevel

# RFC 9651: a string, an integer, a token; `;key=value` parameters.
_STRING = r'"(?:[ !#-\[\]-~]|\\["\\])*"'
_INTEGER = r"-?\d{1,15}"
_TOKEN = r"[A-Za-z*][A-Za-z0-9!#$%&'*+.^_`|~:/-]*"
_PARAMETER = rf"; ?[a-z*][a-z0-9_.*-]*(?:=(?:{_STRING}|{_INTEGER}|{_TOKEN}))?"
ITEM = re.compile(rf"{_TOKEN}(?:{_PARAMETER})*")
LIST = re.compile(rf"{ITEM.pattern}(?:, {ITEM.pattern})*")
TIMINGS = re.compile(r"[a-z_]+;dur=\d+\.\d{3}(?:, [a-z_]+;dur=\d+\.\d{3})*")

anything = st.text(st.characters(exclude_categories=()), max_size=30)
names = st.sampled_from(["trim_history", "cap_output", "add_stop"])
numbers = st.integers() | st.sampled_from([0, 10**15 - 1, 10**15, -(10**15), 10**4000])
keys = st.sampled_from(["saved", "set", "model", "response_format.json_schema", "Ä"]) | anything
details = st.lists(st.tuples(keys, anything | numbers), max_size=3)
steps = st.lists(
    st.builds(StepReport, names, st.sampled_from(StepStatus), anything, details.map(tuple)), max_size=4
)


def exchange(**known: object) -> Exchange:
    made = Exchange("0123456789abcdef00000001", 100.0)
    for name, value in known.items():
        assert name in Exchange.__slots__
        object.__setattr__(made, name, value)
    return made


def lines(said: bytes) -> dict[str, str]:
    """Return header lines as a strict client reads them, by lower-case name."""
    reader = ResponseReader(ClientLimits(head_bytes=10**6))
    reader.expect(b"GET")
    reader.feed(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n" + said + b"\r\n")
    assert reader.failure is None
    assert reader.is_ended
    assert reader.head is not None
    pairs = [(name.decode("ascii"), value.decode("ascii")) for name, _, value in reader.head.headers]
    assert len(pairs) == len(dict(pairs)), "a header stands twice"
    return dict(pairs)


@given(anything.filter(bool), anything, anything, steps, st.sampled_from(Urgency), st.sampled_from(Lane))
def test_every_header_is_valid_whatever_reasons_and_names_hold(
    route: str, urgency_reason: str, lane_reason: str, reports: list[StepReport], urgency: Urgency, lane: Lane
) -> None:
    said = lines(
        report_headers(
            exchange(
                route=route,
                policy_version="abc123",
                urgency=UrgencyDecision(urgency, urgency_reason),
                lane=LaneDecision(lane, lane_reason),
                steps=tuple(reports),
                tokens_before=9,
                tokens_after=5,
            ),
            HeaderLevel.FULL,
            101.0,
            None,
        )
    )
    assert ITEM.fullmatch(said["x-weir-urgency"])
    assert ITEM.fullmatch(said["x-weir-lane"])
    assert said["x-weir-urgency"].startswith(f"{urgency.value}; reason=")
    assert ("x-weir-steps" in said) is bool(reports)
    assert not reports or LIST.fullmatch(said["x-weir-steps"])
    assert said["x-weir-tokens"] == "in=5, in_before=9"
    assert TIMINGS.fullmatch(said["server-timing"])
    is_text = not any(0xD800 <= ord(character) < 0xE000 for character in route)
    if is_text and route == route.strip():
        assert unquote(said["x-weir-route"]) == route


@pytest.mark.parametrize(
    ("reason", "shown"),
    [
        ("plain words", '"plain words"'),
        ('say "x" \\ y', '"say \\"x\\" \\\\ y"'),
        ("Straße", '"Stra%C3%9Fe"'),
        ("a\r\nX-Evil: 1", '"a%0D%0AX-Evil: 1"'),
        ("", '""'),
    ],
)
def test_a_reason_is_a_string_that_can_be_read_back(reason: str, shown: str) -> None:
    known = exchange(lane=LaneDecision(Lane.STREAM, reason))
    said = lines(report_headers(known, HeaderLevel.FULL, 101.0, None))
    assert said["x-weir-lane"] == f"stream; reason={shown}"


def test_steps_show_what_they_did() -> None:
    reports = (
        StepReport("trim_history", StepStatus.APPLIED, "", (("saved", 812),)),
        StepReport("cap_output", StepStatus.SKIPPED, "no cap"),
        StepReport("choose_model", StepStatus.APPLIED, "", (("rule", 1), ("model", "gpt-5-mini"))),
    )
    said = lines(report_headers(exchange(steps=reports), HeaderLevel.FULL, 101.0, None))
    assert said["x-weir-steps"] == (
        'trim_history;saved=812, cap_output;skipped;reason="no cap", choose_model;rule=1;model="gpt-5-mini"'
    )


def test_levels_say_all_little_and_nothing() -> None:
    known = exchange(route="chat", policy_version="abc", lane=LaneDecision(Lane.STREAM, "interactive"))
    full = lines(report_headers(known, HeaderLevel.FULL, 101.0, None))
    minimal = lines(report_headers(known, HeaderLevel.MINIMAL, 101.0, None))
    assert {"x-weir-route", "x-weir-policy", "x-weir-lane"} <= set(full)
    assert set(minimal) == {"content-length", "x-weir-request-id", "server-timing"}
    assert report_headers(known, HeaderLevel.OFF, 101.0, None) == b""


# --- timing -------------------------------------------------------------------------------------------------


def answered(**known: object) -> Exchange:
    """An exchange that began at 100.0 and had its first token at 100.5."""
    moments: dict[str, object] = {
        "read_at": 100.1,
        "decided_at": 100.2,
        "connect_seconds": 0.05,
        "sent_at": 100.3,
        "first_byte_at": 100.4,
        "first_token_at": 100.5,
        "held_seconds": 0.1,
    }
    return exchange(**(moments | known))


def test_a_head_says_what_is_known_when_it_leaves() -> None:
    said = lines(report_headers(answered(), HeaderLevel.FULL, 100.51, None))
    assert said["server-timing"] == (
        "steps;dur=100.000, queue;dur=0.000, connect;dur=50.000, first_byte;dur=100.000, ttft;dur=200.000, "
        "overhead;dur=160.000"
    )
    assert said["x-weir-ttft-ms"] == "200.000"
    assert "x-weir-tpot-ms" not in said


def test_an_answer_that_was_held_to_its_end_says_all() -> None:
    known = answered(ended_at=101.5, usage=Usage(output_tokens=11))
    said = lines(report_headers(known, HeaderLevel.FULL, 101.5, None))
    assert said["server-timing"].endswith("tpot;dur=100.000, total;dur=1500.000")
    assert said["x-weir-tpot-ms"] == "100.000"


@given(
    st.lists(st.floats(0, 1e6), min_size=6, max_size=6),
    st.floats(0, 1e6),
    st.none() | st.integers(0, 10**9),
    st.booleans(),
)
def test_no_figure_is_ever_negative_or_no_number(
    moments: list[float], now: float, tokens: int | None, has_ended: bool
) -> None:
    fields = ("read_at", "decided_at", "sent_at", "first_byte_at", "first_token_at", "ended_at")
    started, *later = sorted(moments)
    known = dict(zip(fields, [started, *later], strict=True))
    if not has_ended:
        known["ended_at"] = 0.0
    made = exchange(**known, usage=Usage(output_tokens=tokens))
    made.started_at = started
    said = lines(report_headers(made, HeaderLevel.FULL, max(now, moments[0]), None))
    assert TIMINGS.fullmatch(said["server-timing"])
    assert timing_comment(made).startswith(b": weir ")
    assert timing_comment(made).count(b"\n") == 2


def test_a_comment_says_the_figures_of_the_end() -> None:
    known = answered(ended_at=101.5, usage=Usage(output_tokens=11))
    assert timing_comment(known) == b": weir ttft_ms=200.000 tpot_ms=100.000 total_ms=1500.000 tokens=11\n\n"


def test_browsers_may_read_what_is_said_only_where_the_upstream_allows_them_anything() -> None:
    head = ResponseHead(200, b"OK", [(b"access-control-allow-origin", b"Access-Control-Allow-Origin", b"*")])
    said = lines(report_headers(exchange(route="a"), HeaderLevel.FULL, 101.0, head))
    assert said["access-control-expose-headers"] == EXPOSED.decode()
    assert "access-control-expose-headers" not in lines(
        report_headers(exchange(), HeaderLevel.FULL, 101.0, ResponseHead(200, b"OK", []))
    )


def test_every_header_that_can_be_said_is_exposed() -> None:
    known = answered(
        ended_at=101.5,
        usage=Usage(output_tokens=11),
        route="a",
        policy_version="b",
        urgency=UrgencyDecision(Urgency.INTERACTIVE, "c"),
        lane=LaneDecision(Lane.STREAM, "d"),
        steps=(StepReport("add_stop", StepStatus.UNCHANGED),),
        tokens_after=1,
    )
    said = lines(report_headers(known, HeaderLevel.FULL, 101.5, None))
    exposed = {name.strip().lower() for name in EXPOSED.decode().split(",")}
    assert set(said) - {"content-length"} == exposed
