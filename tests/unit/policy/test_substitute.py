from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from proxy.policy.findings import Severity
from proxy.policy.load import check, read
from proxy.policy.model import PolicySet

Loader = Callable[..., PolicySet]
Problems = Callable[..., list[str]]

UPSTREAM = "version: 1\nupstreams:\n  a:\n    base_url: http://h/v1\n    api_key: "


def key_of(load_text: Loader, written: str, env: Mapping[str, str]) -> str:
    secret = load_text(f"{UPSTREAM}{written}\n", env).upstreams["a"].api_key
    assert secret is not None
    return secret.reveal()


@pytest.mark.parametrize(
    ("written", "value"),
    [
        ("${KEY}", "sk"),
        ('"${KEY}"', "sk"),
        ("Bearer-${KEY}-${OTHER}", "Bearer-sk-o"),
        ("$$KEY", "$KEY"),
        ("$${KEY}", "${KEY}"),
        ("a$b", "a$b"),
        ("$", "$"),
        ("$$$$", "$$"),
    ],
)
def test_replaces_references_in_values(load_text: Loader, written: str, value: str) -> None:
    assert key_of(load_text, written, {"KEY": "sk", "OTHER": "o"}) == value


@pytest.mark.parametrize("value", ["pa$$w${rd}", "${KEY}", "a#b: c", "{[*&!|>'\"%@`", "no", "012", "# x"])
def test_never_expands_or_parses_a_value_again(load_text: Loader, value: str) -> None:
    assert key_of(load_text, "${KEY}", {"KEY": value}) == value


def test_keys_are_not_substituted(load_text: Loader) -> None:
    policies = load_text("version: 1\nupstreams:\n  ${KEY}: {base_url: http://h/v1}\n", {"KEY": "x"})
    assert list(policies.upstreams) == ["${KEY}"]


def test_works_in_every_text_value(load_text: Loader) -> None:
    policies = load_text(
        "version: 1\nroutes:\n  - name: ${TEAM}\n    match: {model: ['${MODEL}', b]}\n    usage: ${USAGE}\n"
        "    commit_after: ${WAIT}\n",
        {"TEAM": "t", "MODEL": "gpt-*", "USAGE": "off", "WAIT": "2s"},
    )
    route = policies.routes[0]
    assert (route.name, route.match.model, route.usage.value) == ("t", ("gpt-*", "b"), "off")
    assert route.commit_after_seconds == 2.0


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ("${MISSING}", "environment variable MISSING is not set"),
        ("x${MISSING}y", "environment variable MISSING is not set"),
        ("${}", "${…} takes NAME or file:/path (write $${ for the characters themselves)"),
        ("${A B}", "${…} takes NAME or file:/path (write $${ for the characters themselves)"),
        ("${KEY:-x}", "${…} takes NAME or file:/path (write $${ for the characters themselves)"),
        ("${KEY", "${ without its } (write $${ for the characters themselves)"),
        ("${file:key}", "${file:…} takes an absolute path"),
        ("${file:/nonexistent/key}", "file /nonexistent/key cannot be read: No such file or directory"),
    ],
)
def test_what_is_missing_is_named_by_its_key_path(problems: Problems, written: str, said: str) -> None:
    assert problems(f"{UPSTREAM}{written}\n", {"KEY": "sk"}) == [f"5:14: upstreams.a.api_key: {said}"]


def test_a_missing_value_causes_no_second_finding(problems: Problems) -> None:
    assert problems("version: 1\nupstreams: {a: {base_url: '${MISSING}'}}\n") == [
        "2:27: upstreams.a.base_url: environment variable MISSING is not set"
    ]


def test_a_substituted_value_never_shows(problems: Problems) -> None:
    for key, value in (("base_url", "ftp://hidden"), ("provider", "hidden"), ("api_key", "hid\nden")):
        given = "" if key == "base_url" else "    base_url: http://h/v1\n"
        (problem,) = problems(f"version: 1\nupstreams:\n  a:\n{given}    {key}: ${{V}}\n", {"V": value})
        assert "hid" not in problem
        assert f"upstreams.a.{key}" in problem


@pytest.mark.parametrize(("content", "value"), [("sk", "sk"), ("sk\n", "sk"), ("sk\r\n", "sk")])
def test_drops_one_trailing_line_break_of_a_file(
    load_text: Loader, tmp_path: Path, content: str, value: str
) -> None:
    (tmp_path / "key").write_bytes(content.encode())
    assert key_of(load_text, f"${{file:{tmp_path}/key}}", {}) == value


def test_drops_no_more_than_one_line_break(problems: Problems, tmp_path: Path) -> None:
    (tmp_path / "key").write_text("sk\n\n")
    (problem,) = problems(f"{UPSTREAM}${{file:{tmp_path}/key}}\n")
    assert "line breaks" in problem


def test_a_line_break_in_the_environment_is_no_key(problems: Problems) -> None:
    (problem,) = problems(f"{UPSTREAM}${{KEY}}\n", {"KEY": "sk-1\n"})
    assert problem.startswith("5:14: upstreams.a.api_key: the key has spaces around it, line breaks")
    assert "sk-1" not in problem


def test_a_file_that_is_no_text_or_no_file_is_refused(problems: Problems, tmp_path: Path) -> None:
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    (problem,) = problems(f"{UPSTREAM}${{file:{tmp_path}/binary}}\n")
    assert "is not a small UTF-8 text" in problem
    (problem,) = problems(f"{UPSTREAM}${{file:{tmp_path}}}\n")
    assert "cannot be read" in problem


def test_a_name_without_braces_is_pointed_out(problems: Problems) -> None:
    (problem,) = problems(f"{UPSTREAM}$API_KEY\n", {"API_KEY": "sk"})
    assert problem == (
        "5:14: upstreams.a.api_key: warning: the $ is taken as it is: nothing is replaced "
        "(did you mean ${NAME}? A literal $ is written $$)"
    )
    assert problems(f"{UPSTREAM}$$API_KEY\n") == []


MISSING = """\
version: 1
upstreams:
  a: {base_url: "${URL}", api_key: "${file:/no/such/key}", provider: "${WHO}", timeouts: {idle: "${IDLE}"}}
  b: {base_url: "https://${HOST}/v1", proxy: "${PROXY}", tls: {ca: "${CA}"}}
defaults: {upstream: a}
routes:
  - {name: "${TEAM}", match: {path: "${WHERE}", method: "${HOW}"}, max_body: "${SIZE}"}
"""


def test_what_is_missing_may_be_left_unknown(write: Callable[..., str]) -> None:
    reading = read([write(MISSING)], {}, None, allow_missing=True)
    assert [finding.severity for finding in reading.findings] == [Severity.WARNING] * 11
    assert str(reading.findings[0]).endswith(
        "upstreams.a.base_url: warning: environment variable URL is not set; a placeholder stands for it"
    )
    assert reading.policies is not None
    assert reading.policies.upstreams["b"].base_url == "https://placeholder/v1"
    assert len(check([write(MISSING)], {})) == 11
    assert read([write(MISSING)], {}, None).policies is None


def test_what_is_there_is_judged_as_ever_where_the_missing_may_be_left_out(write: Callable[..., str]) -> None:
    text = MISSING.replace('"${HOW}"', "post")
    found = check([write(text)], {"URL": "ftp://h"}, allow_missing=True)
    errors = [finding.problem for finding in found if finding.severity is Severity.ERROR]
    assert errors == ["a URL begins with http:// or https://", "methods are written in capitals"]
