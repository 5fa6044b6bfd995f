"""The shape of the code: sizes, names, imports, and what tests may not do."""

from __future__ import annotations

import ast
import graphlib
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "proxy"
MAX_FILE_LINES = 400
MAX_FUNCTION_LINES = 60
REFUSED_NAMES = {"utils", "util", "helpers", "helper", "common", "misc", "manager"}


def _sources(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*.py") if "__pycache__" not in path.parts)


def _tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), str(path))


def _module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def test_no_file_outgrows_one_job() -> None:
    lines = {
        str(path.relative_to(ROOT)): len(path.read_text(encoding="utf-8").splitlines())
        for path in _sources(PACKAGE)
    }
    assert lines, "nothing found to measure"
    assert {name: count for name, count in lines.items() if count > MAX_FILE_LINES} == {}


def test_no_function_outgrows_a_screen() -> None:
    too_long = {}
    for path in _sources(PACKAGE):
        for node in ast.walk(_tree(path)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                length = (node.end_lineno or node.lineno) - node.lineno + 1
                if length > MAX_FUNCTION_LINES:
                    too_long[f"{path.relative_to(ROOT)}:{node.lineno} {node.name}"] = length
    assert too_long == {}


def test_no_module_is_a_grab_bag() -> None:
    named = [
        str(path.relative_to(ROOT))
        for path in _sources(PACKAGE) + _sources(ROOT / "tests")
        if REFUSED_NAMES & {part.removesuffix(".py") for part in path.relative_to(ROOT).parts}
    ]
    assert named == []


def test_every_package_folder_has_an_init() -> None:
    bare = [
        str(folder.relative_to(ROOT))
        for folder in {path.parent for path in _sources(PACKAGE)}
        if not (folder / "__init__.py").is_file()
    ]
    assert bare == []


def test_every_module_says_what_it_owns() -> None:
    silent = [str(path.relative_to(ROOT)) for path in _sources(PACKAGE) if not ast.get_docstring(_tree(path))]
    assert silent == []


IMPORT_PARTS = 6
"""Each takes a few seconds, side by side with the others."""


# One process for many, which forgets our modules between two of them: a fresh interpreter for each would take
# minutes.
def test_every_module_imports_alone() -> None:
    """Each can be imported at all, and none in a circle, which would hang on who is imported first."""
    names = [_module_name(path) for path in _sources(PACKAGE) if path.name != "__main__.py"]
    code = "import importlib, sys; [importlib.import_module(name) for name in sys.stdin.read().split()]"
    run = subprocess.run(
        [sys.executable, "-c", code],
        input="\n".join(names),
        capture_output=True,
        text=True,
        cwd=ROOT,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    graph = {_module_name(path): _imported(path, frozenset(names)) for path in _sources(PACKAGE)}
    try:
        tuple(graphlib.TopologicalSorter(graph).static_order())
    except graphlib.CycleError as circle:
        raise AssertionError(" -> ".join(reversed(circle.args[1]))) from None


def _imported(path: Path, known: frozenset[str]) -> set[str]:
    """Return the modules of ours that run before a module does: what it imports, and their packages."""
    mine = _module_name(path)
    found: set[str] = set()
    for node in _executed(_tree(path).body):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module is not None and not node.level:
            found.update(_meant(node.module, alias.name, known) for alias in node.names)
    packages = {name.rsplit(".", depth)[0] for name in found for depth in range(1, name.count(".") + 1)}
    around = {package for package in packages if mine == package or mine.startswith(f"{package}.")}
    return ((found | (packages - around)) & known) - {mine}


def _meant(module: str, name: str, known: frozenset[str]) -> str:
    return f"{module}.{name}" if f"{module}.{name}" in known else module


def _executed(statements: Sequence[ast.stmt]) -> Iterator[ast.stmt]:
    """Yield the statements that run at import, in blocks too, but what is only for type checkers."""
    for statement in statements:
        yield statement
        if isinstance(statement, ast.If) and "TYPE_CHECKING" in ast.unparse(statement.test):
            yield from _executed(statement.orelse)
        elif isinstance(statement, ast.If | ast.Try | ast.With):
            for block in ("body", "orelse", "finalbody"):
                yield from _executed(getattr(statement, block, ()))


_LINT_IMPORTS = "from importlinter.cli import lint_imports_command; lint_imports_command()"


def test_imports_go_down_only() -> None:
    run = subprocess.run(
        [sys.executable, "-c", _LINT_IMPORTS, "--no-logo", "--no-cache"],
        capture_output=True,
        text=True,
        cwd=ROOT,
        check=False,
    )
    assert run.returncode == 0, run.stdout + run.stderr


def test_tests_patch_nothing_of_ours() -> None:
    """A test that wants to patch is missing a port with an in-memory twin (CONTRIBUTING.md)."""
    patching = []
    for path in _sources(ROOT / "tests"):
        for node in ast.walk(_tree(path)):
            match node:
                case ast.Import(names=names):
                    found = any(alias.name.startswith("unittest.mock") for alias in names)
                case ast.ImportFrom(module=module, names=names):
                    found = (module or "").startswith("unittest.mock") or (
                        module == "unittest" and any(alias.name == "mock" for alias in names)
                    )
                case ast.Attribute(attr=attr):
                    found = attr == "setattr"
                case _:
                    continue
            if found:
                patching.append(f"{path.relative_to(ROOT)}:{node.lineno}")
    assert patching == []


def test_tests_name_what_they_test() -> None:
    """Unit tests stand where the module stands: tests/unit/<path>/test_<module>.py."""
    astray = []
    for path in _sources(ROOT / "tests" / "unit"):
        if not path.name.startswith("test_"):
            continue
        folder = PACKAGE / path.parent.relative_to(ROOT / "tests" / "unit")
        if not folder.is_dir():
            astray.append(str(path.relative_to(ROOT)))
    assert astray == []


def test_no_text_of_a_policy_or_caller_becomes_a_regular_expression() -> None:
    """A pattern from outside could stop a worker; where one decides, patterns are `proxy.core.globs`."""
    built = []
    for folder in ("core", "dialects", "steps", "policy"):
        for path in _sources(PACKAGE / folder):
            for function in ast.walk(_tree(path)):
                if isinstance(function, ast.FunctionDef | ast.Lambda):
                    built += [
                        f"{path.relative_to(ROOT)}:{call.lineno}"
                        for call in ast.walk(function)
                        if isinstance(call, ast.Call)
                        and ast.unparse(call.func).startswith("re.")
                        and not (call.args and isinstance(call.args[0], ast.Constant))
                    ]
    assert built == []
