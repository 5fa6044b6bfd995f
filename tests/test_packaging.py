"""What is installed is what is here: data files ship, the command exists, versions agree."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import proxy

ROOT = Path(__file__).resolve().parent.parent


def _shipped_files() -> set[str]:
    return {
        str(path.relative_to(ROOT))
        for path in (ROOT / "proxy").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }


def test_the_wheel_carries_every_file_of_the_package(tmp_path: Path) -> None:
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    run = subprocess.run(build, cwd=ROOT, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout + run.stderr
    (wheel,) = tmp_path.glob("weir_proxy-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        scripts = archive.read(f"weir_proxy-{proxy.__version__}.dist-info/entry_points.txt").decode()
    assert _shipped_files() - names == set()
    assert "weir = proxy.cli.main:main" in scripts


def test_locks_pin_every_direct_dependency() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    runtime = project["project"]["dependencies"]
    groups = project["dependency-groups"]
    own = [requirement for requirement in groups["dev"] if isinstance(requirement, str)]
    wanted = {"runtime": runtime, "dev": runtime + own + groups["build"], "build": groups["build"]}
    for name, requirements in wanted.items():
        lock = (ROOT / "requirements" / f"{name}.lock").read_text(encoding="utf-8")
        pinned = set(re.findall(r"^([a-z0-9-]+)==\S+", lock, re.MULTILINE))
        direct = {re.split(r"[^A-Za-z0-9-]", requirement)[0].lower() for requirement in requirements}
        assert direct - pinned == set(), f"requirements/{name}.lock is stale: make lock"


def test_locks_agree_on_releases() -> None:
    def pins(name: str) -> dict[str, str]:
        lock = (ROOT / "requirements" / f"{name}.lock").read_text(encoding="utf-8")
        return dict(re.findall(r"^([a-z0-9-]+)==(\S+)", lock, re.MULTILINE))

    dev = pins("dev")
    others = {**pins("runtime"), **pins("build")}
    assert {name: version for name, version in others.items() if dev.get(name) != version} == {}


# Distributions whose import name is another.
_DISTRIBUTIONS = {"yaml": "pyyaml", "prometheus_client": "prometheus-client"}


def test_every_import_of_the_package_is_a_declared_dependency() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = [requirement for extra in project["optional-dependencies"].values() for requirement in extra]
    declared = {
        re.split(r"[^A-Za-z0-9-]", requirement)[0].lower() for requirement in project["dependencies"] + extras
    }
    imported = set()
    for path in (ROOT / "proxy").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                imported |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                imported.add((node.module or "").partition(".")[0])
    foreign = imported - set(sys.stdlib_module_names) - {"proxy"}
    assert {_DISTRIBUTIONS.get(name, name) for name in foreign} - declared == set()
