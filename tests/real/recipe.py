"""A recipe of docs/recipes: the files in its fenced blocks, as they stand, and what is needed to try them."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.real.install import ROOT, python_of
from tests.real.processes import Server, clean_environment, simulator
from tests.real.served import origin_of
from tests.support.weir_process import WeirProcess, weir_process

RECIPES = ROOT / "docs" / "recipes"
KEY_OF_WEIR = "sk-of-weir"
PROGRAM_SECONDS = 60.0
_BLOCK = re.compile(r"^```(?:python|yaml)\n# (\S+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def files_of(page: str) -> dict[str, str]:
    """Return the blocks of a recipe that begin with the name of a file, by that name."""
    return dict(_BLOCK.findall((RECIPES / page).read_text(encoding="utf-8")))


@dataclass(frozen=True, slots=True)
class Kitchen:
    """Weir as a recipe has it, in front of the simulated provider, and the recipe's files."""

    files: Mapping[str, str]
    folder: Path
    weir: WeirProcess
    sim: Server

    def program(self, name: str, environment: str = "openai-3", **variables: str) -> subprocess.Popen[str]:
        """Start one of the recipe's programs with nothing told but where to ask."""
        path = self.folder / name
        path.write_text(self.files[name], encoding="utf-8")
        told = {"OPENAI_BASE_URL": f"{origin_of(self.weir)}/v1", "OPENAI_API_KEY": "sk-of-the-script"}
        return subprocess.Popen(
            [str(python_of(environment)), str(path)],
            cwd=self.folder,
            env=clean_environment(self.folder, **told, **variables),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def printed(self, name: str, environment: str = "openai-3", **variables: str) -> list[str]:
        """Run one of the recipe's programs to its end; return the lines that it printed."""
        with self.program(name, environment, **variables) as process:
            try:
                output, errors = process.communicate(timeout=PROGRAM_SECONDS)
            finally:
                process.kill()
        assert process.returncode == 0, errors
        return output.splitlines()

    def metric(self, name: str, **labels: str) -> float:
        """Return the sum over a metric's series with these labels."""
        total = 0.0
        for line in self.weir.admin("/metrics").body.decode().splitlines():
            if line.startswith((name + "{", name + " ")) and all(
                f'{key}="{value}"' in line for key, value in labels.items()
            ):
                total += float(line.rsplit(" ", 1)[1])
        return total


@contextmanager
def kitchen(page: str, folder: Path, policies: str = "weir.yaml", **variables: str) -> Iterator[Kitchen]:
    """Serve with the policies of a recipe until the block ends; `variables` are for Weir, too."""
    files = files_of(page)
    with simulator(folder) as sim:
        environment = {
            "UPSTREAM": f"{sim.url}/v1",
            "OPENAI_API_KEY": KEY_OF_WEIR,
            "WEIR_STORE": f"sqlite:{folder / 'jobs.db'}",
        }
        with weir_process(
            folder, None, policies=files[policies], environment=environment | variables
        ) as weir:
            yield Kitchen(files, folder, weir, sim)
