"""What the tests of policies share: writing one to a file, reading it, and steps that are made for it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any, Literal

import pytest

from proxy.core.document import Document
from proxy.policy.load import check, load
from proxy.policy.model import PolicySet, Upstream
from proxy.steps.step import Outcome, Step, StepContext, unchanged


class Shade(Enum):
    LIGHT = "light"
    OFF = "off"


@dataclass(frozen=True, slots=True)
class Inner:
    depth: int = 1


@dataclass(frozen=True, slots=True)
class PaintConfig:
    layers: int
    ratio: float = 0.5
    label: str | None = None
    wet: bool = False
    shade: Shade = Shade.LIGHT
    mode: Literal["fast", "slow"] = "fast"
    inner: Inner = Inner()
    tags: tuple[str, ...] = field(default=(), metadata={"help": "Words."})

    def __post_init__(self) -> None:
        if self.layers < 1:
            raise ValueError("layers must be at least 1")


@dataclass(frozen=True, slots=True)
class WordsConfig:
    words: tuple[str, ...]
    limit: int = 4


@dataclass(frozen=True, slots=True)
class RulesConfig:
    rules: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class PlainConfig:
    level: int = 3


def _apply(document: Document, config: Any, context: StepContext) -> Outcome:
    return unchanged(document)


STEPS = (
    Step("paint", PaintConfig, _apply),
    Step("words", WordsConfig, _apply, shorthand="words"),
    Step("rules", RulesConfig, _apply, shorthand="rules"),
    Step("plain", PlainConfig, _apply),
)

HOME = Upstream(name="home", base_url="http://127.0.0.1:9/v1")

Write = Callable[..., str]
Loader = Callable[..., PolicySet]
Problems = Callable[..., list[str]]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Write a policy file and return its path."""

    def write(text: str, name: str = "policy.yaml") -> str:
        path = tmp_path / name
        path.write_text(text)
        return str(path)

    return write


@pytest.fixture
def load_text(write: Write) -> Loader:
    """Load one policy from text, with the steps of this file and `home` as fallback."""

    def load_text(text: str, env: Mapping[str, str] | None = None) -> PolicySet:
        return load([write(text)], env or {}, HOME, STEPS)

    return load_text


@pytest.fixture
def problems(write: Write) -> Problems:
    """Return everything that `check` says about a text, file names left out."""

    def problems(text: str, env: Mapping[str, str] | None = None) -> list[str]:
        return [
            str(finding).partition("policy.yaml:")[2] for finding in check([write(text)], env or {}, STEPS)
        ]

    return problems


@pytest.fixture
def step_config(load_text: Loader) -> Callable[[str], Any]:
    """Return the config that a route's only step gets from one line of YAML."""

    def step_config(entry: str) -> Any:
        policies = load_text(
            f"version: 1\nroutes:\n  - name: r\n    match: {{}}\n    steps:\n      - {entry}\n"
        )
        (bound,) = policies.routes[0].steps
        return bound.config

    return step_config
