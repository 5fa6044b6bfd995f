"""The format as a whole: what the documented example becomes, and what cannot be loaded."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.core.decision import Urgency
from proxy.policy.findings import Broken, FindingList, PolicyErrors
from proxy.policy.format import file_record
from proxy.policy.kinds import Place
from proxy.policy.load import check, load
from proxy.policy.model import (
    BatchPolicy,
    CoalescePolicy,
    HeaderLevel,
    Match,
    OnError,
    OnOversize,
    PolicySet,
    Provider,
    Secret,
    Timeouts,
    TokenRange,
    Upstream,
    UpstreamTls,
    UsageMode,
)
from proxy.policy.substitute import Substitution
from proxy.policy.yaml_source import parse_yaml
from proxy.steps import STEPS

Write = Callable[..., str]
Loader = Callable[..., PolicySet]

FULL = """\
version: 1

upstreams:
  main:
    base_url: https://api.example/v1/
    api_key: ${KEY}
    provider: azure
    timeouts: {connect: 2s, first_byte: 10m, idle: 500ms, total: off}
    max_connections: 8
    tls:
      ca: /etc/ca.pem
      client_certificate: /etc/client.pem
      client_key: /etc/client.key
      server_name: inner.example
      verify: false
    unix_socket: /run/up.sock
    proxy: off
    retry: {statuses: [429, 503, 529], attempts: 3}
  spare: {base_url: "http://127.0.0.1:1/v1", retry: {}}

defaults: {upstream: main, headers: minimal, on_error: reject}

routes:
  - name: everything
    match:
      path: [/v1/chat/completions, "/v1/x*"]
      method: POST
      model: ["gpt-4o*", gpt-5]
      headers: {X-Team: [support, "sales-*"], x-any: "*"}
      tools: true
      stream: false
      tokens: {min: 10, max: 1000}
    steps:
      - plain
      - words: [a]
    upstream: spare
    urgency:
      default: soon
      deadline: 2h
      rules:
        - {match: {model: small}, urgency: deferrable}
    headers: off
    on_error: pass
    usage: off
    max_body: 64KiB
    max_json_depth: 20
    on_oversize: reject
    commit_after: 250ms
    timing_comment: true
    heartbeat: 15s
    allow_caller: [x-weir-urgency, prefer]
    caller_patience: 30s
    max_concurrent: 4
    coalesce: {window: auto, max_wait: 20ms, max_items: 16}
    batch: {upstream_tiers: [flex, batch], flush: {jobs: 5, after: 1m}}
  - name: bare
    match: {}
"""


@pytest.fixture
def full(load_text: Loader) -> PolicySet:
    return load_text(FULL, {"KEY": "sk-1"})


def test_reads_every_key_of_an_upstream(full: PolicySet) -> None:
    assert full.upstreams["main"] == Upstream(
        name="main",
        base_url="https://api.example/v1",
        api_key=Secret("sk-1"),
        provider=Provider.AZURE,
        timeouts=Timeouts(connect=2.0, first_byte=600.0, idle=0.5, total=None),
        max_connections=8,
        tls=UpstreamTls("/etc/ca.pem", "/etc/client.pem", "/etc/client.key", "inner.example", False),
        unix_socket="/run/up.sock",
        proxy="off",
        retry_statuses=(429, 503, 529),
        retries=3,
    )
    assert full.default_upstream == "main"


def test_an_empty_retry_section_means_the_usual_statuses(full: PolicySet) -> None:
    assert (full.upstreams["spare"].retry_statuses, full.upstreams["spare"].retries) == ((429, 503), 2)


def test_reads_every_condition_of_a_match(full: PolicySet) -> None:
    assert full.routes[0].match == Match(
        path=("/v1/chat/completions", "/v1/x*"),
        method=("POST",),
        model=("gpt-4o*", "gpt-5"),
        headers=(("x-team", ("support", "sales-*")), ("x-any", ("*",))),
        tools=True,
        stream=False,
        tokens=TokenRange(10, 1000),
    )


def test_reads_every_key_of_a_route(full: PolicySet) -> None:
    route = full.routes[0]
    assert [bound.step.name for bound in route.steps] == ["plain", "words"]
    assert (route.upstream, route.headers, route.on_error, route.usage) == (
        "spare",
        HeaderLevel.OFF,
        OnError.PASS,
        UsageMode.OFF,
    )
    assert (route.max_body_bytes, route.max_json_depth, route.on_oversize) == (65536, 20, OnOversize.REJECT)
    assert (route.commit_after_seconds, route.heartbeat_seconds, route.timing_comment) == (0.25, 15.0, True)
    assert (route.caller_patience_seconds, route.max_concurrent) == (30.0, 4)
    assert route.allow_caller == {"x-weir-urgency", "prefer"}
    assert route.coalesce == CoalescePolicy("auto", 0.02, 16)
    assert route.batch == BatchPolicy(("flex", "batch"), 5, 60.0)


def test_reads_urgency(full: PolicySet) -> None:
    urgency = full.routes[0].urgency
    assert (urgency.default, urgency.deadline_seconds) == (Urgency.SOON, 7200.0)
    assert [(rule.match.model, rule.urgency) for rule in urgency.rules] == [(("small",), Urgency.DEFERRABLE)]


def test_defaults_reach_routes_that_do_not_say_otherwise(full: PolicySet) -> None:
    bare = full.routes[1]
    assert (bare.headers, bare.on_error, bare.usage) == (HeaderLevel.MINIMAL, OnError.REJECT, UsageMode.ASK)
    assert bare.upstream is None
    assert full.default_headers is HeaderLevel.MINIMAL


def test_off_is_no_limit(load_text: Loader) -> None:
    route = load_text("version: 1\nroutes: [{name: r, match: {}, max_body: off, heartbeat: off}]\n").routes[0]
    assert (route.max_body_bytes, route.heartbeat_seconds) == (0, None)


def test_knows_the_literal_model_names(full: PolicySet) -> None:
    assert full.models == {"gpt-5", "small"}


def test_no_secret_in_the_representation(full: PolicySet) -> None:
    assert "sk-1" not in repr(full)


def test_raises_with_every_finding(write: Write) -> None:
    path = write("version: 1\nroutes: [{name: a}, {match: {}}]\n")
    with pytest.raises(PolicyErrors) as raised:
        load([path], {})
    assert [finding.line for finding in raised.value.findings] == [2, 2]


def test_a_path_that_leads_nowhere_is_a_finding() -> None:
    (finding,) = check(["/nonexistent/policies"], {})
    assert str(finding) == "/nonexistent/policies:1:1: policy: cannot be read: No such file or directory"


def test_warnings_do_not_prevent_loading(write: Write) -> None:
    path = write(
        "version: 1\nupstreams: {a: {base_url: http://h/v1}}\n"
        "routes: [{name: a, match: {}}, {name: b, match: {}}]"
    )
    assert len(check([path], {})) == 1
    assert len(load([path], {}).routes) == 2


def test_refuses_what_is_no_version_1(load_text: Loader) -> None:
    for version in ("2", '"1"', "1.0", "~"):
        with pytest.raises(PolicyErrors):
            load_text(f"version: {version}\n")


def test_control_headers_are_the_ones_that_exist(load_text: Loader) -> None:
    with pytest.raises(PolicyErrors, match=r"not x-weir-urgncy \(did you mean x-weir-urgency\?\)"):
        load_text("version: 1\nroutes: [{name: r, match: {}, allow_caller: [x-weir-urgncy]}]\n")


def test_a_client_key_needs_its_certificate(load_text: Loader) -> None:
    with pytest.raises(PolicyErrors, match="client_key is given without client_certificate"):
        load_text("version: 1\nupstreams: {a: {base_url: http://h/v1, tls: {client_key: /k}}}\n")


FRAGMENTS = st.sampled_from(
    "\n|  |- |{|}|[|]|: |*|&a |*a|<<: *a|${|${X}|$$|!!str |\t|no|~|? |%|@|`|---\n|\x00|🙂|\"|'".split("|")
)
EDITED = FULL.replace("- plain", "- cap_output: {max: 5}").replace("words:", "add_stop:")


@given(st.integers(0, len(EDITED)), st.integers(0, 40), st.lists(FRAGMENTS, max_size=4))
def test_no_edit_of_a_policy_makes_reading_crash_or_shows_a_secret(
    at: int, cut: int, inserted: list[str]
) -> None:
    text = EDITED[:at] + "".join(inserted) + EDITED[at + cut :]
    findings = FindingList()
    node = parse_yaml("f", text.encode(), findings)
    if node is None:
        assert findings.has_errors
        return
    place = Place("", findings)
    substitution = Substitution({"KEY": "sk-secret"}, lambda path: "sk-secret")
    try:
        file_record(STEPS).read(substitution.apply(node, place), place)
    except Broken:
        assert findings.has_errors
    assert "sk-secret" not in "".join(str(finding) for finding in findings.in_order())
