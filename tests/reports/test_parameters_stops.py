"""Stop sequences that a policy adds: exact, few enough, and never where they break (reports B32-B35)."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.chat import PATH, chat_policy
from tests.support.raw_client import RawAnswer
from tests.support.raw_upstream import Call, RawUpstream
from tests.support.weir import weir


def answer_ok(call: Call) -> None:
    call.json(b'{"choices":[]}')


def refusing_stop(call: Call) -> None:
    """Answer 400 to stop, as some reasoning models do."""
    fields = json.loads(call.body)
    if "stop" in fields:
        error = {
            "message": "Unsupported parameter: 'stop' is not supported with this model.",
            "param": "stop",
        }
        call.json(
            json.dumps({"error": error | {"code": "unsupported_parameter"}}).encode(), b"400 Bad Request"
        )
    elif fields.get("temperature", 0) > 2:
        error = {"message": "temperature must be at most 2", "param": "temperature"}
        call.json(json.dumps({"error": error}).encode(), b"400 Bad Request")
    else:
        answer_ok(call)


def request(stop: str | None = None, more: str = "", model: str = "m") -> bytes:
    own = "" if stop is None else f',"stop":{stop}'
    return f'{{"model":"{model}","messages":[]{own}{more}}}'.encode()


def stops_sent(tmp_path: Path, sequences: str, body: bytes) -> tuple[object, RawAnswer, bytes]:
    """Return the stop that an upstream gets, the answer, and the whole body."""
    policies = chat_policy(f"steps: [{{add_stop: {sequences}}}]")
    with RawUpstream(answer_ok) as upstream, weir(tmp_path, upstream.url, policies) as proxy:
        answer = proxy.client().request("POST", PATH, body)
        assert answer.status == 200
        sent = upstream.calls[0].body
    return json.loads(sent).get("stop"), answer, sent


# B32
@pytest.mark.parametrize("model", ["o1", "o3-mini", "o4-mini", "gpt-5", "gpt-5-nano", "openai/o3"])
@pytest.mark.parametrize("stop", [None, '"own"', '["a","b"]'])
def test_models_that_refuse_stops_get_none_added_and_keep_the_callers(
    tmp_path: Path, model: str, stop: str | None
) -> None:
    body = request(stop, model=model)
    _, answer, sent = stops_sent(tmp_path, '["\\n\\nUser:"]', body)
    assert sent == body
    assert "add_stop;skipped" in (answer.header("x-weir-steps") or "")


# B32
def test_a_route_can_name_further_models_that_refuse_stops(tmp_path: Path) -> None:
    sequences = "{sequences: ['###'], exclude_models: ['my-thinker-*', exact]}"
    for model, expected in (("my-thinker-7b", None), ("exact", None), ("exactly", ["###"])):
        assert stops_sent(tmp_path, sequences, request(model=model))[0] == expected


# B32
def test_a_stop_that_the_upstream_refuses_is_taken_back_once_and_remembered(tmp_path: Path) -> None:
    policies = chat_policy("steps: [{add_stop: ['###']}]")
    with RawUpstream(refusing_stop) as upstream, weir(tmp_path, upstream.url, policies) as proxy:
        answers = [proxy.client().request("POST", PATH, request()) for _ in range(3)]
        bodies = [call.body for call in upstream.calls]
        records = proxy.log(3)
    assert [answer.status for answer in answers] == [200] * 3
    assert bodies == [request('["###"]')] + [request()] * 3
    assert [record["retries"] for record in records] == [1, 0, 0]
    assert "the upstream refuses stop" in records[1]["steps"][0]


# B32
@pytest.mark.parametrize(
    ("body", "param"),
    [
        (request('["own"]'), "stop"),
        (request(None, ',"temperature":9'), "temperature"),
        (request('"own"', ',"temperature":9'), "stop"),
    ],
)
def test_taking_a_stop_back_does_not_hide_the_callers_own_mistake(
    tmp_path: Path, body: bytes, param: str
) -> None:
    policies = chat_policy("steps: [{add_stop: ['###']}]")
    with RawUpstream(refusing_stop) as upstream, weir(tmp_path, upstream.url, policies) as proxy:
        answer = proxy.client().request("POST", PATH, body)
        last = upstream.calls[-1].body
    assert answer.status == 400
    assert json.loads(answer.body)["error"]["param"] == param
    assert last == body, "the error is about what the caller wrote"


# B33
@pytest.mark.parametrize(
    ("own", "merged", "left_out"),
    [
        (["1", "2", "3"], ["1", "2", "3", "x"], 2),
        (["1"], ["1", "x", "y", "z"], 0),
        (["1", "2", "3", "4"], ["1", "2", "3", "4"], None),
        (["1", "2", "3", "4", "5"], ["1", "2", "3", "4", "5"], None),
        (["y", "1"], ["y", "1", "x", "z"], 0),
        (["z", "y", "x"], ["z", "y", "x"], None),
        (["1", "1"], ["1", "1", "x", "y"], 1),
    ],
)
def test_merged_stops_stay_within_the_limit_and_the_callers_come_first(
    tmp_path: Path, own: list[str], merged: list[str], left_out: int | None
) -> None:
    stop, answer, _ = stops_sent(tmp_path, "[x, 'y', z]".replace("'", '"'), request(json.dumps(own)))
    assert stop == merged
    told = answer.header("x-weir-steps") or ""
    assert ("left_out" in told) == bool(left_out)
    if left_out:
        assert f"left_out={left_out}" in told


# B33
@pytest.mark.parametrize(("limit", "count"), [(1, 1), (2, 2), (6, 6), (16, 8)])
def test_the_limit_is_the_routes_to_set(tmp_path: Path, limit: int, count: int) -> None:
    names = [f"s{number}" for number in range(8)]
    stop, _, _ = stops_sent(tmp_path, f"{{sequences: {names}, limit: {limit}}}", request())
    assert stop == names[:count]


# B34
@pytest.mark.parametrize(
    ("own", "merged"),
    [
        ('"END"', '["END","###"]'),
        ("null", '["###"]'),
        ("[]", '["###"]'),
        ('""', '["###"]'),
        ('["END"]', '["END","###"]'),
        ('[ "END" , "A" ]', '[ "END" , "A","###" ]'),
        ('["###"]', '["###"]'),
        ('"###"', '"###"'),
        (r'"E\u004eD"', r'["E\u004eD","###"]'),
        (r'["\u0023##"]', r'["\u0023##"]'),
        ("7", "7"),
        ("{}", "{}"),
        ("true", "true"),
    ],
)
def test_every_type_of_stop_is_merged_as_what_it_is(tmp_path: Path, own: str, merged: str) -> None:
    assert stops_sent(tmp_path, '["###"]', request(own))[2] == request(merged)


# B34
def test_an_absent_stop_becomes_the_policys_own(tmp_path: Path) -> None:
    assert stops_sent(tmp_path, '["###"]', request())[2] == request('["###"]')


# B34
@pytest.mark.parametrize("own", ['"END"', "null", "[]", '""', "[1]", None])
def test_a_route_without_stops_keeps_the_type(tmp_path: Path, own: str | None) -> None:
    body = request(own)
    with RawUpstream(answer_ok) as upstream, weir(tmp_path, upstream.url, chat_policy()) as proxy:
        proxy.client().request("POST", PATH, body)
        assert upstream.calls[0].body == body


# B35
@pytest.mark.parametrize(
    ("written", "meant"),
    [
        (r'["\n```"]', "\n```"),
        (r'["\n\nUser:"]', "\n\nUser:"),
        ("['\\n']", "\\n"),
        (r'["\\n"]', "\\n"),
        (r'["\t"]', "\t"),
        ('["end "]', "end "),
        ('[" end"]', " end"),
        ("['  ']", "  "),
        (r'["\r\n"]', "\r\n"),
        (r'["\u2028"]', "\u2028"),
        (r'["\0"]', "\0"),
        ('["é\u0301🐈"]', "é\u0301🐈"),
        ("['\"quoted\"']", '"quoted"'),
        ("[<|im_end|>]", "<|im_end|>"),
        ("['$${not} {{a}} $x']", "${not} {{a}} $x"),
    ],
)
def test_a_configured_stop_is_exact_to_the_code_point(tmp_path: Path, written: str, meant: str) -> None:
    assert stops_sent(tmp_path, written, request())[0] == [meant]


# B35
@pytest.mark.parametrize(
    ("block", "meant"),
    [
        ("|-\n            \n            ```", "\n```"),
        ("|\n            ```", "```\n"),
        ("|+\n            a\n", "a\n\n"),
        (">-\n            a\n            b", "a b"),
    ],
)
def test_block_scalars_mean_what_yaml_says(tmp_path: Path, block: str, meant: str) -> None:
    policies = chat_policy("steps:", "  - add_stop:", f"      - {block}")
    with RawUpstream(answer_ok) as upstream, weir(tmp_path, upstream.url, policies) as proxy:
        proxy.client().request("POST", PATH, request())
        assert json.loads(upstream.calls[0].body)["stop"] == [meant]
