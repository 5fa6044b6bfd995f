"""Starts and ends the servers of these tests, each a process of its own, and runs programs to their end."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from tests.real.install import HERE, ROOT, node, npm_folder, python_of

START_SECONDS = 30.0
STOP_SECONDS = 5.0
PROGRAM_SECONDS = 90.0
ANNOUNCED = re.compile(r"listening on (http://[0-9.]+:[0-9]+)|Uvicorn running on (http://[0-9.]+:[0-9]+)")


class Server:
    """A running server; `url` is its origin, as it announced it, and `output` all that it has printed."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.url = ""
        self.lines: list[str] = []
        self._is_announced = threading.Event()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    @property
    def output(self) -> str:
        """All lines so far."""
        return "".join(self.lines)

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(line)
            found = ANNOUNCED.search(line)
            if found and not self.url:
                self.url = found[1] or found[2]
                self._is_announced.set()
        self._is_announced.set()

    def wait_until_announced(self) -> None:
        """Wait for the line that says where it listens."""
        assert self._is_announced.wait(START_SECONDS), self.output
        assert self.url, self.output

    def ask(self, method: str, path: str, body: bytes | None = None) -> bytes:
        """Ask the server itself something; return the answer's body."""
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(self.url + path, data=body, headers=headers, method=method)
        with urllib.request.urlopen(request, timeout=STOP_SECONDS) as answer:
            said: bytes = answer.read()
            return said

    def close(self) -> None:
        """End the process."""
        self.process.terminate()
        try:
            self.process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait(STOP_SECONDS)
        self._reader.join(STOP_SECONDS)
        if self.process.stdout is not None:
            self.process.stdout.close()


def clean_environment(home: Path, **more: str) -> dict[str, str]:
    """Return an environment without anything of this user's: no settings, proxies or keys."""
    kept = {name: os.environ[name] for name in ("PATH", "LANG", "LC_ALL", "TMPDIR") if name in os.environ}
    return kept | {"HOME": str(home), "PYTHONUNBUFFERED": "1"} | more


@contextmanager
def server(command: Sequence[str | Path], home: Path) -> Iterator[Server]:
    """Run a server until the block ends. It must print its URL."""
    running = Server(
        subprocess.Popen(
            [str(part) for part in command],
            cwd=ROOT,
            env=clean_environment(home),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
    )
    try:
        running.wait_until_announced()
        yield running
    finally:
        running.close()


@contextmanager
def simulator(home: Path) -> Iterator[Server]:
    """Run the simulated provider, quick and without a prompt cache: equal requests, equal answers."""
    scenario = home / "scenario.yaml"
    scenario.write_text(
        "timing: {base_ms: 1, prefill_ms_per_token: 0, decode_ms_per_token: 1, output_tokens: 12}\n"
        "cache: {enabled: false}\n",
        encoding="utf-8",
    )
    command = [sys.executable, "-m", "proxy.cli.main", "simulate", "--listen", "127.0.0.1:0"]
    with server([*command, "--scenario", scenario], home) as running:
        yield running


@contextmanager
def llama(home: Path, *options: str) -> Iterator[Server]:
    """Run llama.cpp's own server with a tiny random model (servers/llama.py), which looks for a port."""
    command: list[str | Path] = [python_of("servers"), HERE / "servers" / "llama.py", home, *options]
    with _on_a_free_port(lambda: command, home) as running:
        yield running


@contextmanager
def _on_a_free_port(command: Callable[[], Sequence[str | Path]], home: Path) -> Iterator[Server]:
    """Run a server that is told a port which was free a moment ago: if somebody took it since, another."""
    with ExitStack() as stack:
        yield _started(stack, command, home, tries=3)


def _started(stack: ExitStack, command: Callable[[], Sequence[str | Path]], home: Path, tries: int) -> Server:
    try:
        return stack.enter_context(server(command(), home))
    except AssertionError:
        if tries == 1:
            raise
        return _started(stack, command, home, tries - 1)


@contextmanager
def llmock(home: Path) -> Iterator[Server]:
    """Run llmock: a provider with faults on demand, and a verdict on how they were met."""

    def command() -> Sequence[str | Path]:
        with socket.socket() as listener:
            listener.bind(("127.0.0.1", 0))
            port = listener.getsockname()[1]
        program = python_of("servers").parent / "llmock"
        return [program, "serve", "--host", "127.0.0.1", "--port", str(port)]

    with _on_a_free_port(command, home) as running:
        yield running


@contextmanager
def aimock(home: Path, fixtures: Path) -> Iterator[Server]:
    """Run aimock with the answers of a JSON file: another provider with faults on demand, and websockets."""
    program = npm_folder() / "node_modules" / "@copilotkit" / "aimock" / "dist" / "cli.js"
    with server([node(), program, "--port", "0", "--fixtures", fixtures], home) as running:
        yield running


class ProgramError(AssertionError):
    """A client's program failed; the text is what it printed."""


@contextmanager
def python_program(
    environment: str, program: str, server: str, home: Path
) -> Iterator[Callable[[Mapping[str, str]], str]]:
    """Start a program of `clients/` in one of the Python environments (clients/again.py).

    Yields what runs it with environment variables, which stay set, and returns what it printed.
    """
    command = [python_of(environment), HERE / "clients" / "again.py", program, server]
    said = home / f"said-{time.monotonic_ns()}.log"
    with said.open("w+", encoding="utf-8") as errors:
        process = subprocess.Popen(
            [str(part) for part in command],
            cwd=home,
            env=clean_environment(home),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        )
        assert process.stdin is not None
        assert process.stdout is not None
        given, printed = process.stdin, process.stdout

        def run(variables: Mapping[str, str]) -> str:
            too_long = threading.Timer(PROGRAM_SECONDS, process.kill)
            too_long.start()
            given.write(json.dumps(dict(variables)) + "\n")
            given.flush()
            lines: list[str] = []
            try:
                for line in printed:
                    if line == "again\n":
                        return "".join(lines)
                    lines.append(line)
            finally:
                too_long.cancel()
            text = said.read_text(encoding="utf-8")
            raise ProgramError(f"{command} {dict(variables)}\n{''.join(lines)[-2000:]}\n{text[-6000:]}")

        try:
            yield run
        finally:
            given.close()
            printed.close()
            try:
                process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait(STOP_SECONDS)


def run_python(
    environment: str, program: str, arguments: Sequence[str], home: Path, variables: Mapping[str, str]
) -> str:
    """Run a program of `clients/` in one of the Python environments; return what it printed."""
    command: list[str | Path] = [python_of(environment), HERE / "clients" / program, *arguments]
    return _run(command, home, variables, cwd=home, text=None)


def run_node(program: str, arguments: Sequence[str], home: Path, variables: Mapping[str, str]) -> str:
    """Run a program of `clients/` with node; return what it printed.

    It comes from standard input, after observing.mjs: so packages are looked up in the working directory,
    where they are installed.
    """
    parts = [(HERE / "clients" / name).read_text(encoding="utf-8") for name in ("observing.mjs", program)]
    source = "\n".join(parts)
    command: list[str | Path] = [node(), "--input-type=module", "-", *arguments]
    return _run(command, home, variables, cwd=npm_folder(), text=source)


def _run(
    command: Sequence[str | Path], home: Path, variables: Mapping[str, str], cwd: Path, text: str | None
) -> str:
    done = subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        env=clean_environment(home, **variables),
        input=text or "",
        capture_output=True,
        text=True,
        timeout=PROGRAM_SECONDS,
        check=False,
    )
    if done.returncode != 0:
        raise ProgramError(f"{command} {dict(variables)}\n{done.stdout[-2000:]}\n{done.stderr[-6000:]}")
    return done.stdout
