"""The clients that are run: program, environment, and the one variable that points each of them at Weir."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.real.processes import python_program, run_node, run_python

KEY = "sk-test-of-a-client"
BOTH = ("simulator", "llama.cpp")


@dataclass(frozen=True, slots=True)
class Client:
    """One client.

    `environment` names requirements/<environment>.txt, or is `node`; `program` is a file of clients/;
    `variable` is the environment variable that takes the base URL, and `path` what it wants after the origin.
    `variables` are what else the client needs in order to run here, never where requests go. A client that
    `keeps_connections` for its whole process, whatever became of their event loop, is started anew each time.
    """

    name: str
    packages: tuple[str, ...]
    environment: str
    program: str
    variable: str = "OPENAI_BASE_URL"
    path: str = "/v1"
    key_variable: str = "OPENAI_API_KEY"
    servers: tuple[str, ...] = BOTH
    variables: tuple[tuple[str, str], ...] = ()
    keeps_connections: bool = False

    @contextmanager
    def started(self, server: str, home: Path) -> Iterator[Callable[[str], dict[str, Any]]]:
        """Start the program for a kind of server; yields what runs it against an origin.

        That returns what the client showed.
        """
        if self.environment == "node":
            yield lambda origin: _shown(run_node(self.program, [server], home, self._variables(origin)))
            return
        if self.keeps_connections:
            yield lambda origin: _shown(
                run_python(self.environment, self.program, [server], home, self._variables(origin))
            )
            return
        with python_program(self.environment, self.program, server, home) as run:
            yield lambda origin: _shown(run(self._variables(origin)))

    def _variables(self, origin: str) -> dict[str, str]:
        return {self.variable: origin + self.path, self.key_variable: KEY, **dict(self.variables)}


def _shown(printed: str) -> dict[str, Any]:
    seen: dict[str, Any] = json.loads(printed.rstrip().rpartition("\n")[2])
    return seen


CLIENTS = (
    Client("openai-python-1", ("openai",), "openai-1", "with_openai.py"),
    Client("openai-python-2", ("openai",), "openai-2", "with_openai.py"),
    Client("openai-python-3", ("openai",), "openai-3", "with_openai.py"),
    Client(
        "anthropic-python",
        ("anthropic",),
        "openai-3",
        "with_anthropic.py",
        variable="ANTHROPIC_BASE_URL",
        path="",
        key_variable="ANTHROPIC_API_KEY",
    ),
    Client("langchain", ("langchain-openai",), "openai-3", "with_langchain.py", keeps_connections=True),
    Client(
        "llama-index",
        ("llama-index-llms-openai",),
        "openai-2",
        "with_llamaindex.py",
        variable="OPENAI_API_BASE",
    ),
    Client(
        "litellm",
        ("litellm",),
        "openai-2",
        "with_litellm.py",
        # It would fetch a table of prices when it is imported.
        variables=(("LITELLM_LOCAL_MODEL_COST_MAP", "True"),),
        keeps_connections=True,
    ),
    Client("instructor", ("instructor",), "openai-2", "with_instructor.py", servers=("simulator",)),
    Client("pydantic-ai", ("pydantic-ai-slim",), "openai-3", "with_pydantic_ai.py", keeps_connections=True),
    Client("openai-node", ("openai",), "node", "with_openai.mjs", variables=(("SDK", "openai"),)),
    Client("openai-node-6", ("openai-6",), "node", "with_openai.mjs", variables=(("SDK", "openai-6"),)),
    Client("ai-sdk", ("ai", "@ai-sdk/openai"), "node", "with_ai_sdk.mjs"),
)
