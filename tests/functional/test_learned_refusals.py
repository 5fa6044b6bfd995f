"""What an upstream refuses of a policy's changes is taken back, remembered, told, and undoes no limit."""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.support.chat import ANSWER, DONE, PATH, chat_policy, delta, finish
from tests.support.raw_client import RawAnswer
from tests.support.raw_upstream import Call, RawUpstream
from tests.support.weir import RunningWeir, weir

Script = Callable[[Call], None]
STOP = "add_stop: ['###']"
CAP = "cap_output: {default: 300}"


def request(more: str = "", model: str = "m") -> bytes:
    return f'{{"model":"{model}","messages":[{{"role":"user","content":"hi"}}]{more}}}'.encode()


def refuse(call: Call, message: str, param: str | None = None, status: bytes = b"400 Bad Request") -> None:
    error = {"message": message, "type": "invalid_request_error", "param": param, "code": None}
    call.json(json.dumps({"error": error}).encode(), status)


def refusing(*names: str) -> Script:
    """Return an upstream that knows none of these parameters, and names the first of them that it finds."""

    def script(call: Call) -> None:
        said = json.loads(call.body)
        found = next((name for name in names if name in said), None)
        if found is None:
            call.json(ANSWER)
        else:
            refuse(call, f"Unsupported parameter: '{found}' is not supported with this model.", found)

    return script


@contextmanager
def proxied(
    tmp_path: Path, script: Script, *steps: str, lines: tuple[str, ...] = (), **upstream_lines: str
) -> Iterator[tuple[RunningWeir, RawUpstream]]:
    with RawUpstream(script) as upstream:
        listed = ", ".join(f"{{{step}}}" for step in steps)
        provider = upstream_lines.get("upstream", "provider: generic")
        policy = chat_policy(f"steps: [{listed}]", *lines, base_url=upstream.url, upstream=provider)
        with weir(tmp_path, None, policy) as proxy:
            yield proxy, upstream


def ask(proxy: RunningWeir, body: bytes, *headers: tuple[str, str]) -> RawAnswer:
    return proxy.client().request("POST", PATH, body, list(headers))


def bodies(upstream: RawUpstream) -> list[dict[str, Any]]:
    return [json.loads(call.body) for call in upstream.calls]


def keys(upstream: RawUpstream) -> list[set[str]]:
    return [set(body) - {"model", "messages"} for body in bodies(upstream)]


def counted(proxy: RunningWeir, param: str) -> float:
    return proxy.metric("weir_rewrites_refused_total", upstream="up", param=param)


# --- a parameter that Weir added ---------------------------------------------------------------------------


def test_a_refused_parameter_costs_one_call_and_is_told(tmp_path: Path) -> None:
    with proxied(tmp_path, refusing("stop"), CAP, STOP) as (proxy, upstream):
        answers = [ask(proxy, request()) for _ in range(3)]
        records = proxy.log(3)
        assert counted(proxy, "stop") == 1
    assert [answer.status for answer in answers] == [200] * 3
    assert keys(upstream) == [{"max_tokens", "stop"}, {"max_tokens"}, {"max_tokens"}, {"max_tokens"}]
    assert [record["retries"] for record in records] == [1, 0, 0]
    assert [record["taken_back"] for record in records] == [["stop"], [], []]
    for answer, record in zip(answers, records, strict=True):
        steps = 'cap_output;set=300, add_stop;skipped;reason="the upstream refuses stop"'
        assert answer.header("x-weir-steps") == steps, "also the first time"
        assert record["steps"] == [
            "cap_output;applied;set=300",
            "add_stop;skipped (the upstream refuses stop)",
        ]


def test_two_refused_parameters_cost_two_calls(tmp_path: Path) -> None:
    with proxied(tmp_path, refusing("stop", "max_tokens"), CAP, STOP) as (proxy, upstream):
        assert [ask(proxy, request()).status for _ in range(2)] == [200] * 2
        assert (counted(proxy, "stop"), counted(proxy, "max_tokens"), counted(proxy, "original")) == (1, 1, 0)
        assert proxy.log(2)[0]["taken_back"] == ["stop", "max_tokens"]
    # The second request tries the other field for the cap, of which nothing is known.
    assert keys(upstream) == [{"max_tokens", "stop"}, {"max_tokens"}, set(), {"max_completion_tokens"}]


def test_refusals_are_known_by_upstream_and_model(tmp_path: Path) -> None:
    def script(call: Call) -> None:
        (refusing("stop") if json.loads(call.body)["model"] == "picky" else refusing())(call)

    with proxied(tmp_path, script, STOP) as (proxy, upstream):
        for model in ("picky", "picky", "other"):
            assert ask(proxy, request(model=model)).status == 200
    assert keys(upstream) == [{"stop"}, set(), set(), {"stop"}]


@pytest.mark.parametrize("status", [b"400 Bad Request", b"422 Unprocessable Entity"])
@pytest.mark.parametrize(
    "said",
    [
        {"error": {"message": "Unrecognized request argument supplied: 'stop'", "param": None}},
        {"object": "error", "message": "The parameter `stop` is not supported.", "code": 400},
        {
            "detail": [
                {"type": "extra_forbidden", "loc": ["body", "stop"], "msg": "Extra inputs are not permitted"}
            ]
        },
        {"object": "error", "message": {"detail": [{"loc": ["body", "stop"], "msg": "extra_forbidden"}]}},
        {"error": 'unknown field "stop"'},
    ],
    ids=["openai", "vllm", "fastapi", "mistral", "plain"],
)
def test_refusals_come_in_many_shapes(tmp_path: Path, said: Any, status: bytes) -> None:
    def script(call: Call) -> None:
        if b'"stop"' in call.body:
            call.json(json.dumps(said).encode(), status)
        else:
            call.json(ANSWER)

    with proxied(tmp_path, script, CAP, STOP) as (proxy, upstream):
        assert [ask(proxy, request()).status for _ in range(2)] == [200] * 2
    assert keys(upstream) == [{"max_tokens", "stop"}, {"max_tokens"}, {"max_tokens"}]


@pytest.mark.parametrize("coding", ["gzip", "deflate"])
def test_refusals_are_read_when_they_come_compressed(tmp_path: Path, coding: str) -> None:
    error = json.dumps({"error": {"message": "Unsupported parameter: 'stop'", "param": "stop"}}).encode()
    packed = gzip.compress(error) if coding == "gzip" else zlib.compress(error)

    def script(call: Call) -> None:
        if b'"stop"' in call.body:
            call.json(packed, b"400 Bad Request", f"Content-Encoding: {coding}\r\n".encode())
        else:
            call.json(ANSWER)

    with proxied(tmp_path, script, CAP, STOP) as (proxy, upstream):
        assert [ask(proxy, request(), ("Accept-Encoding", coding)).status for _ in range(2)] == [200] * 2
    assert keys(upstream) == [{"max_tokens", "stop"}, {"max_tokens"}, {"max_tokens"}]


def test_a_value_that_does_not_fit_once_is_tried_again(tmp_path: Path) -> None:
    """A cap that is too large for one prompt is right for the next."""

    def script(call: Call) -> None:
        if b"long" in call.body and b"max_tokens" in call.body:
            refuse(call, "max_tokens is too large: 300. This prompt leaves room for 20.", "max_tokens")
        else:
            call.json(ANSWER)

    with proxied(tmp_path, script, CAP) as (proxy, upstream):
        for model in ("long", "long", "m"):
            assert ask(proxy, request(model=model)).status == 200
    assert keys(upstream) == [{"max_tokens"}, set(), {"max_tokens"}, set(), {"max_tokens"}]


def test_streams_are_taken_back_too(tmp_path: Path) -> None:
    def script(call: Call) -> None:
        if "stream_options" in json.loads(call.body):
            refuse(call, "Unknown parameter: 'stream_options'.", "stream_options")
            return
        call.stream_head()
        call.chunk(delta("a") + finish() + DONE)
        call.end_chunks()

    with proxied(tmp_path, script) as (proxy, upstream):
        for _ in range(2):
            answer = ask(proxy, request(',"stream":true'))
            assert (answer.status, answer.body) == (200, delta("a") + finish() + DONE)
        assert proxy.log(2)[0]["taken_back"] == ["stream_options"]
    assert keys(upstream) == [{"stream", "stream_options"}, {"stream"}, {"stream"}]


# --- everything else ---------------------------------------------------------------------------------------


def refusing_rewrites(call: Call) -> None:
    """Refuse whatever is not as the callers of these tests write it, and name nothing."""
    if call.body in (request(), request(',"temperature":9')):
        call.json(ANSWER)
    else:
        refuse(call, "This request cannot be processed.")


def test_any_other_refusal_is_answered_with_what_the_caller_wrote(tmp_path: Path) -> None:
    with proxied(tmp_path, refusing_rewrites, CAP, "shape_output: {terse: x, create_system: true}") as (
        proxy,
        upstream,
    ):
        answer = ask(proxy, request())
        (record,) = proxy.log(1)
        assert counted(proxy, "original") == 1
    assert (answer.status, answer.body) == (200, ANSWER)
    assert [call.body for call in upstream.calls][1:] == [request()]
    assert (record["taken_back"], record["retries"]) == (["original"], 1)
    refused = "skipped (the upstream refused the rewritten request)"
    assert record["steps"] == [f"cap_output;{refused}", f"shape_output;{refused}"]
    assert (answer.header("x-weir-steps") or "").count("the upstream refused the rewritten request") == 2


def test_what_was_saved_is_not_counted_when_it_is_taken_back(tmp_path: Path) -> None:
    long = json.dumps(
        [{"role": "user", "content": "word " * 200}, {"role": "assistant", "content": "a"}] * 2
    )[:-1]
    body = b'{"model":"m","messages":' + long.encode() + b',{"role":"user","content":"hi"}]}'

    def script(call: Call) -> None:
        call.json(ANSWER) if call.body == body else refuse(call, "No.")

    with proxied(tmp_path, script, "trim_history: {budget: 50}") as (proxy, _):
        answer = ask(proxy, body)
        (record,) = proxy.log(1)
        assert proxy.metric("weir_tokens_saved_total") == 0
    assert answer.status == 200
    assert answer.header("x-weir-tokens") is None
    assert (record["tokens_in_before"], record["taken_back"]) == (None, ["original"])


def test_a_parameter_first_and_all_of_it_then(tmp_path: Path) -> None:
    def script(call: Call) -> None:
        said = json.loads(call.body)
        if "stop" in said:
            refuse(call, "Unsupported parameter: 'stop'.", "stop")
        elif "max_tokens" in said:
            refuse(call, "Something is wrong.")
        else:
            call.json(ANSWER)

    with proxied(tmp_path, script, CAP, STOP) as (proxy, upstream):
        assert ask(proxy, request()).status == 200
        assert proxy.log(1)[0]["taken_back"] == ["stop", "original"]
        assert ask(proxy, request()).status == 200
    assert keys(upstream) == [{"max_tokens", "stop"}, {"max_tokens"}, set(), {"max_tokens"}, set()]


@pytest.mark.parametrize(
    "mistake", [',"temperature":9', ',"stop":["1","2","3","4","5"]', ',"max_tokens":-7', ',"nonsense":true']
)
def test_the_callers_own_mistake_reaches_it_unchanged(tmp_path: Path, mistake: str) -> None:
    name = mistake[2:].partition('"')[0]
    raw = b'{"error": {"message": "Invalid \'%b\'.", "param": "%b"}}\n' % (name.encode(), name.encode())

    def script(call: Call) -> None:
        call.json(raw, b"400 Bad Request", b"X-Request-Id: own\r\n") if name in json.loads(
            call.body
        ) else call.json(ANSWER)

    body = request(mistake)
    steps = ("cap_output: {default: 300}", "shape_output: {terse: x, create_system: true}")
    with proxied(tmp_path, script, *steps) as (proxy, upstream):
        answer = ask(proxy, body)
        (record,) = proxy.log(1)
        assert proxy.metric("weir_rewrites_refused_total") == 0
    assert (answer.status, answer.body, answer.header("x-request-id")) == (400, raw, "own")
    assert upstream.calls[-1].body == body, "it is the answer to what the caller wrote"
    assert len(upstream.calls) == 2
    assert record["taken_back"] == []


def test_a_mistake_in_a_request_that_nothing_changed_costs_no_second_call(tmp_path: Path) -> None:
    with proxied(tmp_path, refusing("temperature"), "cap_output: {max: 900}") as (proxy, upstream):
        assert ask(proxy, request(',"temperature":9')).status == 400
    assert len(upstream.calls) == 1


def test_a_text_of_the_callers_that_a_refusal_quotes_teaches_nothing(tmp_path: Path) -> None:
    """Otherwise one caller could switch a policy's parameters off for all."""

    def script(call: Call) -> None:
        if b"poison" in call.body:
            refuse(call, "Unsupported content: \"poison 'stop'\"")
        else:
            call.json(ANSWER)

    with proxied(tmp_path, script, STOP) as (proxy, upstream):
        poison = request().replace(b"hi", b"poison 'stop'")
        assert ask(proxy, poison).status == 400
        assert ask(proxy, request()).status == 200
    assert keys(upstream)[-1] == {"stop"}


@pytest.mark.parametrize("status", ["401", "403", "404", "413", "429", "500", "503"])
def test_other_statuses_are_no_refusals_of_a_body(tmp_path: Path, status: str) -> None:
    def script(call: Call) -> None:
        refuse(call, "Unsupported parameter: 'stop'.", "stop", f"{status} No".encode())

    with proxied(tmp_path, script, STOP) as (proxy, upstream):
        assert ask(proxy, request()).status == int(status)
    assert len(upstream.calls) == 1


@pytest.mark.parametrize(
    "refusal",
    [
        b"",
        b"no json",
        b"[]",
        b'{"error": null}',
        b'{"error": {"param": 7}}',
        b"\xff\xfe",
        b"[" * 5000,
        b'"stop"',
    ],
    ids=range(8),
)
def test_refusals_that_say_nothing_lead_to_the_callers_words(tmp_path: Path, refusal: bytes) -> None:
    def script(call: Call) -> None:
        call.json(ANSWER) if b'"stop"' not in call.body else call.json(refusal, b"400 Bad Request")

    with proxied(tmp_path, script, STOP) as (proxy, upstream):
        assert ask(proxy, request()).status == 200
    assert len(upstream.calls) == 2


def test_a_refusal_too_long_to_be_one_is_relayed(tmp_path: Path) -> None:
    refusal = b'{"error": "' + b"x" * 200_000 + b'"}'
    with proxied(tmp_path, lambda call: call.json(refusal, b"400 Bad Request"), STOP) as (proxy, upstream):
        answer = ask(proxy, request())
    assert (answer.status, answer.body) == (400, refusal)
    assert len(upstream.calls) == 1


def test_a_body_that_came_compressed_goes_out_plain_as_it_was(tmp_path: Path) -> None:
    with proxied(tmp_path, refusing_rewrites, CAP) as (proxy, upstream):
        answer = ask(proxy, gzip.compress(request()), ("Content-Encoding", "gzip"))
        assert proxy.log(1)[0]["taken_back"] == ["original"]
    assert answer.status == 200
    assert upstream.calls[-1].body == request()
    assert upstream.calls[-1].header("content-encoding") is None


# --- on_reject, limits, other upstreams --------------------------------------------------------------------


def test_a_route_may_let_refusals_pass(tmp_path: Path) -> None:
    with proxied(tmp_path, refusing_rewrites, CAP, lines=("on_reject: pass",)) as (proxy, upstream):
        answer = ask(proxy, request())
        assert proxy.metric("weir_rewrites_refused_total") == 0
    assert answer.status == 400
    assert json.loads(answer.body)["error"]["message"] == "This request cannot be processed."
    assert len(upstream.calls) == 1


def test_a_parameter_of_ours_is_taken_back_there_all_the_same(tmp_path: Path) -> None:
    with proxied(tmp_path, refusing("stop"), STOP, lines=("on_reject: pass",)) as (proxy, upstream):
        assert ask(proxy, request()).status == 200
    assert keys(upstream) == [{"stop"}, set()]


def test_a_default_for_all_routes(tmp_path: Path) -> None:
    with RawUpstream(refusing_rewrites) as upstream:
        policy = chat_policy(f"steps: [{{{CAP}}}]", base_url=upstream.url)
        policy = policy.replace("routes:", "defaults: {on_reject: pass}\nroutes:")
        with weir(tmp_path, None, policy) as proxy:
            assert ask(proxy, request()).status == 400


@pytest.mark.parametrize(
    ("steps", "body"),
    [
        (("cap_output: {max: 100}",), request(',"max_tokens":4000')),
        (("set_params: {temperature: {max: 0.5}}",), request(',"temperature":0.9')),
        (("set_params: {user: {set: w}}",), request(',"user":"x"')),
        (("set_params: {n: {forbid: [2]}}", STOP), request()),
        (("trim_history: {budget: 5000, on_overflow: reject}", STOP), request()),
    ],
)
def test_a_limit_is_never_undone(tmp_path: Path, steps: tuple[str, ...], body: bytes) -> None:
    with proxied(tmp_path, lambda call: refuse(call, "No."), *steps) as (proxy, upstream):
        answer = ask(proxy, body)
    assert answer.status == 400
    assert body not in [call.body for call in upstream.calls]
    assert len(upstream.calls) == 1


def test_a_parameter_that_the_policy_insists_on_is_not_left_out(tmp_path: Path) -> None:
    insists = "set_params: {user: {set: w}, seed: {default: 1}}"
    with proxied(tmp_path, refusing("seed", "user"), insists) as (proxy, upstream):
        answer = ask(proxy, request())
        assert counted(proxy, "seed") == 0
    assert (answer.status, json.loads(answer.body)["error"]["param"]) == (400, "user")
    assert keys(upstream) == [{"seed", "user"}, {"user"}], "a default is a wish, what is set is not"


TWO_UPSTREAMS = """
version: 1
upstreams:
  home: {{base_url: '{home}', provider: generic}}
  away: {{base_url: '{away}', provider: generic}}
defaults: {{upstream: home}}
routes:
  - name: chat
    match: {{path: /v1/chat/completions}}
    steps: [{steps}]
"""


@contextmanager
def two_upstreams(
    tmp_path: Path, away: Script, steps: str
) -> Iterator[tuple[RunningWeir, RawUpstream, RawUpstream]]:
    with RawUpstream(lambda call: call.json(ANSWER)) as home, RawUpstream(away) as other:
        policy = TWO_UPSTREAMS.format(home=home.url, away=other.url, steps=steps)
        with weir(tmp_path, None, policy) as proxy:
            yield proxy, home, other


def test_what_was_written_for_one_upstream_is_never_sent_to_another(tmp_path: Path) -> None:
    steps = f"{{choose_model: [{{upstream: away, model: large}}]}}, {{{CAP}}}"
    with two_upstreams(tmp_path, lambda call: refuse(call, "No."), steps) as (proxy, home, away):
        answer = ask(proxy, request(model="small"))
        (record,) = proxy.log(1)
    assert answer.status == 400
    assert home.calls == [], "a rule keeps such requests away from it"
    assert [body["model"] for body in bodies(away)] == ["large"]
    assert (record["upstream"], record["model"], record["taken_back"]) == ("away", "large", [])


def test_a_parameter_is_taken_back_where_the_request_went(tmp_path: Path) -> None:
    steps = f"{{{STOP}}}, {{choose_model: [{{upstream: away, model: large}}]}}, {{{CAP}}}"
    with two_upstreams(tmp_path, refusing("stop"), steps) as (proxy, home, away):
        assert [ask(proxy, request(model="small")).status for _ in range(2)] == [200] * 2
        records = proxy.log(2)
    assert home.calls == []
    # What was added for the small model is known to be refused for the large one.
    assert keys(away) == [{"max_tokens", "stop"}, {"max_tokens"}, {"max_tokens"}]
    for record in records:
        assert record["steps"][0] == "add_stop;skipped (the upstream refuses stop)"


def test_a_model_that_was_chosen_is_taken_back_with_the_rest(tmp_path: Path) -> None:
    def script(call: Call) -> None:
        model = json.loads(call.body)["model"]
        call.json(ANSWER) if model == "small" else refuse(call, "The model does not take this.")

    with proxied(tmp_path, script, "choose_model: [{model: large}]", CAP) as (proxy, upstream):
        answer = ask(proxy, request(model="small"))
        (record,) = proxy.log(1)
    assert answer.status == 200
    assert [body["model"] for body in bodies(upstream)] == ["large", "small"]
    assert (record["model"], record["taken_back"]) == ("small", ["original"])


# --- members deep inside -----------------------------------------------------------------------------------


def test_refused_breakpoints_are_taken_back_and_remembered(tmp_path: Path) -> None:
    body = json.dumps(
        {
            "model": "gpt-5.6",
            "messages": [
                {"role": "system", "content": "Answer from the handbook. " * 300},
                {"role": "user", "content": "hi"},
            ],
        }
    ).encode()

    def script(call: Call) -> None:
        path = "messages[0].content[0].prompt_cache_breakpoint"
        if b"prompt_cache_breakpoint" in call.body:
            refuse(call, f"Unknown parameter: '{path}'.", path)
        else:
            call.json(ANSWER)

    with proxied(tmp_path, script, "align_prefix: {}", upstream="provider: openai") as (proxy, upstream):
        assert [ask(proxy, body).status for _ in range(2)] == [200] * 2
        assert proxy.log(2)[0]["taken_back"] == ["original"]
        assert counted(proxy, "original") == 1
    assert upstream.calls[1].body == body
    last = json.loads(upstream.calls[2].body)
    assert last.pop("prompt_cache_key").startswith("weir-")
    assert last == json.loads(body)
    assert len(upstream.calls) == 3


# --- meanwhile ---------------------------------------------------------------------------------------------


def test_a_caller_that_leaves_while_a_refusal_comes_in_is_gone(tmp_path: Path) -> None:
    def script(call: Call) -> None:
        call.send(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 100\r\n\r\n{")
        assert call.wait_for_close(5)

    with proxied(tmp_path, script, STOP) as (proxy, upstream):
        client = proxy.client()
        client.send(
            b"POST %b HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n%b"
            % (PATH.encode(), len(request()), request())
        )
        upstream.wait_for_calls(1)
        client.close()
        (record,) = proxy.log(1)
    assert (record["error"], record["taken_back"]) == ("client_closed", [])


def test_a_refusal_that_breaks_off_is_an_error_of_the_upstream(tmp_path: Path) -> None:
    def script(call: Call) -> None:
        call.send(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 100\r\n\r\n{")
        call.close()

    with proxied(tmp_path, script, STOP) as (proxy, _):
        answer = ask(proxy, request())
    assert (answer.status, json.loads(answer.body)["error"]["code"]) == (502, "upstream_closed")


def test_a_resent_request_is_retried_as_its_upstream_says(tmp_path: Path) -> None:
    def script(call: Call) -> None:
        if call.number == 1:
            refuse(call, "busy", status=b"503 Service Unavailable")
        else:
            refusing("stop")(call)

    retrying = "retry: {statuses: [503], attempts: 1}"
    with proxied(tmp_path, script, STOP, upstream=retrying) as (proxy, upstream):
        assert ask(proxy, request()).status == 200
        (record,) = proxy.log(1)
    assert keys(upstream) == [{"stop"}, set(), set()]
    assert (record["retries"], record["taken_back"]) == (2, ["stop"])
