"""The shape of the code: sizes, names, imports, and what tests may not do."""

from __future__ import annotations

import ast
import subprocess
import sys
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


# One process for all, which forgets our modules between two of them: a hundred fresh interpreters would take
# the better part of a minute.
_IMPORT_EACH_ALONE = """
import importlib, sys, traceback
failed = []
for name in sys.stdin.read().split():
    for known in [known for known in sys.modules if known.partition(".")[0] == "proxy"]:
        del sys.modules[known]
    try:
        importlib.import_module(name)
    except Exception:
        traceback.print_exc()
        failed.append(name)
sys.exit("cannot be imported alone: " + ", ".join(failed) if failed else 0)
"""


def test_every_module_imports_alone() -> None:
    names = [_module_name(path) for path in _sources(PACKAGE) if path.name != "__main__.py"]
    run = subprocess.run(
        [sys.executable, "-c", _IMPORT_EACH_ALONE],
        input="\n".join(names),
        capture_output=True,
        text=True,
        cwd=ROOT,
        check=False,
    )
    assert run.returncode == 0, run.stderr


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
