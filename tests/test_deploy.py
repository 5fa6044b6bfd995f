"""What deploy/ promises: it parses, runs commands that exist with policies that are valid, never as root."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from proxy.cli.main import build_parser
from proxy.policy.load import check

ROOT = Path(__file__).resolve().parent.parent
DEPLOY = ROOT / "deploy"
MANIFESTS = sorted((DEPLOY / "kubernetes").glob("*.yaml"))
DOCKERFILE = (DEPLOY / "Dockerfile").read_text(encoding="utf-8")


def _documents(path: Path) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all(path.read_text(encoding="utf-8")))


def _compose() -> dict[str, dict[str, Any]]:
    services: dict[str, dict[str, Any]] = _documents(DEPLOY / "compose.yaml")[0]["services"]
    return services


def _pods(path: Path) -> Iterator[dict[str, Any]]:
    for document in _documents(path):
        if document["kind"] == "Deployment":
            yield document["spec"]["template"]["spec"]


def _containers(path: Path) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    for pod in _pods(path):
        for container in pod.get("initContainers", []) + pod["containers"]:
            yield pod, container


def _is_weir(image: str) -> bool:
    return image.partition(":")[0] == "weir"


def _instruction(name: str) -> list[str]:
    joined = DOCKERFILE.replace("\\\n", " ")
    return re.findall(rf"^{name} (.+)$", joined, re.MULTILINE)


def _final_stage() -> str:
    return DOCKERFILE.rpartition("\nFROM ")[2]


def _commands() -> Iterator[tuple[str, list[str]]]:
    yield "Dockerfile", json.loads(_instruction("CMD")[-1])
    for name, service in _compose().items():
        if _is_weir(service["image"]) and "command" in service:
            yield f"compose {name}", service["command"]
    for path in MANIFESTS:
        for _, container in _containers(path):
            if _is_weir(container["image"]):
                yield f"{path.name} {container['name']}", container["args"]


@pytest.mark.parametrize(("where", "arguments"), list(_commands()))
def test_commands_exist_with_the_flags_that_are_used(where: str, arguments: list[str]) -> None:
    parsed = build_parser().parse_args(arguments)
    assert vars(parsed), where


@pytest.mark.parametrize("path", MANIFESTS, ids=lambda path: path.name)
def test_embedded_policies_are_valid(path: Path, tmp_path: Path) -> None:
    maps = [document for document in _documents(path) if document["kind"] == "ConfigMap"]
    assert maps
    for config_map in maps:
        for name, text in config_map["data"].items():
            (tmp_path / name).write_text(text, encoding="utf-8")
    assert [str(finding) for finding in check([str(tmp_path)], {})] == []


@pytest.mark.parametrize("path", MANIFESTS, ids=lambda path: path.name)
def test_no_container_may_run_as_root(path: Path) -> None:
    for pod, container in _containers(path):
        context = {**pod.get("securityContext", {}), **container.get("securityContext", {})}
        assert context["runAsNonRoot"] is True, container["name"]
        assert context["allowPrivilegeEscalation"] is False, container["name"]
        if _is_weir(container["image"]):
            assert context["runAsUser"] >= 10_000
            assert context["readOnlyRootFilesystem"] is True
            assert context["capabilities"] == {"drop": ["ALL"]}


def test_no_service_of_compose_runs_as_root() -> None:
    for name, service in _compose().items():
        assert int(service["user"].partition(":")[0]) > 0, name
        assert service["cap_drop"] == ["ALL"], name
        assert service["read_only"] is True, name


def test_compose_publishes_on_loopback_only() -> None:
    published = [port for service in _compose().values() for port in service.get("ports", [])]
    assert published
    assert [port for port in published if not port.startswith("127.0.0.1:")] == []


def test_the_image_runs_as_a_user_without_rights() -> None:
    assert re.search(r"^USER 65532:65532$", _final_stage(), re.MULTILINE)


def test_the_image_carries_no_build_tools() -> None:
    stage = _final_stage()
    assert not re.search(r"apt-get|pip install|gcc|^RUN ", stage, re.MULTILINE)
    assert "HEALTHCHECK" in stage


def test_the_image_is_built_from_files_that_are_here() -> None:
    for arguments in _instruction("COPY"):
        *sources, _ = [word for word in arguments.split() if not word.startswith("--")]
        for source in sources:
            # What starts with a slash comes from the build stage.
            assert source.startswith("/") or (ROOT / source).exists(), source


def test_probes_ask_the_admin_port() -> None:
    for path in MANIFESTS:
        for _, container in _containers(path):
            if not _is_weir(container["image"]):
                continue
            admin = container["args"][container["args"].index("--admin") + 1]
            ports = {port["name"]: port["containerPort"] for port in container["ports"]}
            assert admin == f"0.0.0.0:{ports['admin']}"
            probes = {
                name: container[f"{name}Probe"]["httpGet"] for name in ("startup", "readiness", "liveness")
            }
            assert {probe["port"] for probe in probes.values()} == {"admin"}
            assert probes["liveness"]["path"] == "/healthz"
            assert probes["readiness"]["path"] == probes["startup"]["path"] == "/readyz"


def test_the_sidecar_outlives_the_application_and_stays_inside_its_pod() -> None:
    (pod,) = _pods(DEPLOY / "kubernetes" / "sidecar.yaml")
    (sidecar,) = pod["initContainers"]
    assert sidecar["restartPolicy"] == "Always"
    assert sidecar["args"][sidecar["args"].index("--listen") + 1] == "127.0.0.1:8080"
    (application,) = pod["containers"]
    assert {"name": "OPENAI_BASE_URL", "value": "http://127.0.0.1:8080/v1"} in application["env"]
