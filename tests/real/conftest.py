"""The servers that these tests share, one of each for a worker."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.real.processes import llama, simulator
from tests.real.registry import KEY
from tests.real.served import Setup, served


@pytest.fixture(scope="session")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for what programs write."""
    return tmp_path_factory.mktemp("home")


@pytest.fixture(scope="session")
def simulated(home: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Setup]:
    """The simulated provider with Weir in front."""
    with simulator(home) as server, served(server, tmp_path_factory, is_recorded=True) as setup:
        yield setup


@pytest.fixture(scope="session")
def llama_chat(home: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Setup]:
    """llama.cpp's server with a tiny model and Weir in front."""
    with llama(home) as server, served(server, tmp_path_factory) as setup:
        yield setup


@pytest.fixture(scope="session")
def llama_alone(home: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Setup]:
    """One that asks for a key, works on one request at a time, and keeps prompts that it has read."""
    with (
        llama(home, "--slots", "1", "--key", KEY, "--cache") as server,
        served(server, tmp_path_factory) as setup,
    ):
        yield setup


@pytest.fixture(scope="session")
def llama_embedding(home: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Setup]:
    """One that embeds."""
    with llama(home, "--embedding") as server, served(server, tmp_path_factory) as setup:
        yield setup
