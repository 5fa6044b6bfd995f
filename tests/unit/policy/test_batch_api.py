"""Whose files and batches Weir keeps, as policies say it."""

from __future__ import annotations

from pathlib import Path

import pytest

from proxy.core.upstream import ServedBatchApi
from proxy.policy.batch_api import asks_batch_api, may_ask_batch_api
from proxy.policy.load import read


def _read(tmp_path: Path, settings: str) -> tuple[ServedBatchApi | None, list[str]]:
    file = tmp_path / "weir.yaml"
    file.write_text(f"version: 1\nupstreams: {{a: {{base_url: 'http://h/v1', {settings}}}}}\n")
    reading = read((str(file),), {}, None)
    served = None if reading.policies is None else reading.policies.upstreams["a"].batch_api
    return served, [str(finding).split(": ", 1)[1] for finding in reading.findings]


@pytest.mark.parametrize(
    ("settings", "served"),
    [
        ("provider: vllm", ServedBatchApi(give_way=True)),
        ("provider: llamacpp", ServedBatchApi()),
        ("provider: vllm, batch_api: {}", ServedBatchApi(give_way=True)),
        ("provider: vllm, batch_api: {mode: auto}", ServedBatchApi(give_way=True)),
        ("provider: vllm, batch_api: {give_way: false}", ServedBatchApi()),
        ("provider: llamacpp, batch_api: {give_way: true}", ServedBatchApi(give_way=True)),
        ("provider: vllm, batch_api: {mode: pass}", None),
        ("provider: generic", None),
        ("provider: openai", None),
        ("batch_api: {mode: serve}", ServedBatchApi()),
        (
            "batch_api: {mode: serve, max_in_flight: 4, may_meet: 0.25, priority: -3}",
            ServedBatchApi(max_in_flight=4, may_meet=0.25, priority=-3),
        ),
    ],
)
def test_the_provider_decides_unless_the_policy_does(
    tmp_path: Path, settings: str, served: ServedBatchApi | None
) -> None:
    assert _read(tmp_path, settings) == (served, [])


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ("batch_api: serve", "(write {mode: serve})"),
        ("batch_api: {mode: server}", "(did you mean serve?)"),
        ("batch_api: {max_inflight: 4}", "(did you mean max_in_flight?)"),
        ("batch_api: {max_in_flight: 0}", "at least 1 is wanted"),
        ("batch_api: {may_meet: 0}", "at least 0.001 is wanted"),
        ("batch_api: {may_meet: 1.5}", "at most 1 is wanted"),
        ("batch_api: {may_meet: a few}", "a number is wanted"),
        ("provider: vllm, batch_api: {webhook: mine}", "unknown webhook mine"),
    ],
)
def test_says_what_is_wrong(tmp_path: Path, settings: str, said: str) -> None:
    served, findings = _read(tmp_path, settings)
    assert served is None
    assert said in findings[0]


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ("provider: openai, batch_api: {mode: serve}", "openai has a batch API of its own"),
        ("batch_api: {max_in_flight: 4}", "has no effect: mode auto passes"),
        ("provider: vllm, batch_api: {mode: pass, priority: 4}", "has no effect: mode pass passes"),
    ],
)
def test_warns_of_what_cannot_be_meant(tmp_path: Path, settings: str, said: str) -> None:
    _, findings = _read(tmp_path, settings)
    assert len(findings) == 1
    assert "warning" in findings[0]
    assert said in findings[0]


@pytest.mark.parametrize("path", ["/v1/files", "/v1/files/x/content", "/v1/batches/x"])
def test_knows_the_paths_of_the_api(path: str) -> None:
    assert may_ask_batch_api(path)
    assert asks_batch_api((path,))
    assert asks_batch_api(("/other", path))


@pytest.mark.parametrize(
    "path", ["/v1/filesystem", "/v1/file", "/v1/messages/batches", "/files", "/v1/uploads"]
)
def test_leaves_other_paths_alone(path: str) -> None:
    assert not asks_batch_api((path,))
