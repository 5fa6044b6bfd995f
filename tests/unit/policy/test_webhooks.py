"""The `webhooks` section of a policy, and who may name what stands there."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from proxy.core.errors import UNKNOWN_WEBHOOK
from proxy.core.upstream import Secret
from proxy.core.webhook import EVENT_TYPES, Webhook
from proxy.policy.load import check
from proxy.policy.model import Match, PolicySet, Route
from proxy.policy.rewriting import PolicyRefusal
from proxy.policy.webhook_choice import check_named_webhook, named_webhook
from tests.support.webhook_receiver import OTHER_SECRET, SECRET

Loader = Callable[..., PolicySet]
Problems = Callable[..., list[str]]

HEAD = "version: 1\nupstreams: {a: {base_url: http://a/v1}}\n"


def hooks(body: str) -> str:
    return f"{HEAD}webhooks:\n  ops: {{{body}}}\n"


def test_a_webhook_has_what_its_section_says(load_text: Loader) -> None:
    both = f"secret: [{SECRET}, {OTHER_SECRET}]"
    policies = load_text(hooks(f'url: "https://h/x?y=1", {both}, events: "response.*", timeout: 3s'))
    assert policies.webhooks == {
        "ops": Webhook("ops", "https://h/x?y=1", (Secret(SECRET), Secret(OTHER_SECRET)), ("response.*",), 3.0)
    }


def test_a_webhook_hears_everything_within_ten_seconds_by_default(load_text: Loader) -> None:
    webhook = load_text(hooks(f"url: https://h/x, secret: {SECRET}")).webhooks["ops"]
    assert (webhook.events, webhook.timeout_seconds) == (("*",), 10.0)


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (f"secret: {SECRET}", "key url is missing"),
        ("url: https://h/x", "key secret is missing"),
        (f"url: https://u:p@h/x, secret: {SECRET}", "carries no credentials"),
        (f"url: ftp://h/x, secret: {SECRET}", "begins with http:// or https://"),
        (f'url: "https://h/x#y", secret: {SECRET}', "has no fragment"),
        ("url: https://h/x, secret: hunter2", "begins with whsec_"),
        ("url: https://h/x, secret: whsec_.-", "is not base64"),
        ("url: https://h/x, secret: whsec_c2hvcnQ=", "at least 24 bytes"),
        ("url: https://h/x, secret: []", "the list is empty"),
        (f"url: https://h/x, secret: {SECRET}, events: respnse.failed", "did you mean response.failed?"),
        (f"url: https://h/x, secret: {SECRET}, timeout: 2m", "at most 20s"),
        (f"url: https://h/x, secret: {SECRET}, timout: 2s", "did you mean timeout?"),
    ],
)
def test_what_is_wrong_is_said_without_the_secret(problems: Problems, body: str, said: str) -> None:
    (found,) = problems(hooks(body))
    assert said in found
    assert "hunter2" not in found
    assert SECRET not in found


@pytest.mark.parametrize(
    ("url", "is_odd"),
    [
        ("http://hooks.example.com/x", True),
        ("https://hooks.example.com/x", False),
        ("http://127.0.0.1:9/x", False),
        ("http://localhost/x", False),
        ("http://[::1]/x", False),
        ("http://127.0.0.1.example.com/x", True),
    ],
)
def test_plain_http_to_another_machine_is_warned_of(
    write: Callable[..., str], url: str, is_odd: bool
) -> None:
    found = check([write(hooks(f'url: "{url}", secret: {SECRET}'))], {})
    severities = [finding.severity.value for finding in found if "plain http" in finding.problem]
    assert severities == ["warning"] * is_odd


def test_a_secret_may_come_from_the_environment(load_text: Loader) -> None:
    policies = load_text(hooks("url: https://h/x, secret: '${S}'"), env={"S": SECRET})
    assert policies.webhooks["ops"].secrets == (Secret(SECRET),)


@pytest.mark.parametrize(
    "user",
    [
        "routes: [{name: r, match: {}, batch: {webhook: opps}}]",
        "routes: [{name: r, match: {}, batch: {webhook: other}}]",
    ],
)
def test_an_unknown_webhook_is_named(problems: Problems, user: str) -> None:
    found = problems(hooks(f"url: https://h/x, secret: {SECRET}") + user)
    assert any("unknown webhook" in line and "routes.r.batch.webhook" in line for line in found)
    assert any("did you mean ops?" in line for line in found) == ("opps" in user)


def test_an_unknown_webhook_of_a_served_upstream_is_named(problems: Problems) -> None:
    text = "version: 1\nupstreams: {a: {base_url: http://a/v1, batch_api: {mode: serve, webhook: nobody}}}\n"
    (found,) = problems(text)
    assert "upstreams.a.batch_api.webhook: unknown webhook nobody" in found


def test_webhooks_count_in_the_version_and_their_secrets_do_not(load_text: Loader) -> None:
    none = load_text(HEAD).version
    one = load_text(hooks(f"url: https://h/x, secret: {SECRET}")).version
    rotated = load_text(hooks(f"url: https://h/x, secret: {OTHER_SECRET}")).version
    moved = load_text(hooks(f"url: https://h/y, secret: {SECRET}")).version
    assert one == rotated
    assert len({none, one, moved}) == 3


def test_every_type_of_event_fits_some_of_the_documented_globs() -> None:
    assert all(kind.startswith(("response.", "batch.", "weir.job.")) for kind in EVENT_TYPES)


POLICIES = PolicySet("v", {}, "d", (), webhooks={"ops": Webhook("ops", "https://h", (Secret(SECRET),))})
ALLOWING = Route("r", Match(), allow_caller=frozenset({"x-weir-webhook"}))


def test_a_caller_names_a_webhook_where_its_route_allows_that() -> None:
    assert named_webhook(ALLOWING, {"x-weir-webhook": " ops "}.get) == "ops"
    assert named_webhook(ALLOWING, lambda name: None) == ""
    assert named_webhook(Route("r", Match()), {"x-weir-webhook": "ops"}.get) == ""


def test_an_unknown_name_is_refused_and_an_address_is_only_an_unknown_name() -> None:
    check_named_webhook(ALLOWING, {"x-weir-webhook": "ops"}.get, POLICIES)
    check_named_webhook(Route("r", Match()), {"x-weir-webhook": "nobody"}.get, POLICIES)
    for name in ("opps", "https://169.254.169.254/", "\u00e9" * 200):
        with pytest.raises(PolicyRefusal) as caught:
            check_named_webhook(ALLOWING, {"x-weir-webhook": name}.get, POLICIES)
        assert caught.value.kind is UNKNOWN_WEBHOOK
        assert caught.value.message.isascii()
        assert ("did you mean ops?" in caught.value.message) == (name == "opps")
