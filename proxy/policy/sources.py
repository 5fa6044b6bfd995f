"""Owns the files that policies come from: which ones a path stands for, their bytes, and their signature.

A directory stands for its `*.yaml` in name order, without subdirectories and without dot entries: so a
Kubernetes ConfigMap mount works, whose files are links through `..data` into a directory with a new name
after every update. This is the only module of the package besides `reload` that touches the disk.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path

from proxy.policy.findings import FindingList, Mark

MAX_FILE_BYTES = 4 * 1024 * 1024

Signature = tuple[tuple[str, str, int, int, int], ...]
"""Path, path with links resolved, mtime in ns, size and inode of each file; -1 where there is none."""


def policy_files(paths: Sequence[str], findings: FindingList) -> tuple[str, ...]:
    """Return the files that `paths` stand for, in reading order; reports paths that lead nowhere."""
    found: list[str] = []
    for path in paths:
        if not os.path.isdir(path):
            found.append(path)
            continue
        names = _yaml_names(path, findings)
        if not names:
            findings.error(Mark(path), "", "no *.yaml file in this directory")
        found.extend(os.path.join(path, name) for name in names)
    return tuple(found)


def _yaml_names(directory: str, findings: FindingList) -> list[str]:
    names = []
    for name in sorted(_listing(directory)):
        if name.startswith("."):
            continue
        if name.endswith(".yaml") and not os.path.isdir(os.path.join(directory, name)):
            names.append(name)
        elif name.endswith(".yml"):
            findings.warn(Mark(os.path.join(directory, name)), "", "not read: only *.yaml is", "rename it")
    return names


def _listing(directory: str) -> list[str]:
    try:
        return os.listdir(directory)
    except OSError:
        return []


def read_bytes(path: str, findings: FindingList) -> bytes | None:
    """Return a policy file's content; reports what cannot be read or is absurdly large."""
    try:
        raw = _read_limited(path)
    except OSError as error:
        findings.error(Mark(path), "", f"cannot be read: {error.strerror or 'error'}")
        return None
    except ValueError:
        findings.error(Mark(path), "", f"larger than {MAX_FILE_BYTES} bytes")
        return None
    return raw


def read_text(path: str) -> str:
    """Return a small text file; raises `OSError` or `ValueError`."""
    return _read_limited(path).decode()


def _read_limited(path: str) -> bytes:
    if not os.path.isfile(path) and os.path.exists(path):
        raise OSError(0, "not a regular file")
    with Path(path).open("rb") as stream:
        raw = stream.read(MAX_FILE_BYTES + 1)
    if len(raw) > MAX_FILE_BYTES:
        raise ValueError("too large")
    return raw


def signature(paths: Sequence[str], referenced: Iterable[str] = ()) -> Signature:
    """Return what changes when any policy file, or any file that one refers to, changes in any way."""
    files = [*policy_files(paths, FindingList()), *referenced]
    return tuple(_signature_of(path) for path in [*paths, *files])


def _signature_of(path: str) -> tuple[str, str, int, int, int]:
    resolved = os.path.realpath(path)
    try:
        status = os.stat(resolved)
    except OSError:
        return path, resolved, -1, -1, -1
    if os.path.isdir(resolved):
        # A directory's own times change with files that are none of ours; its listing is what counts.
        return path, resolved, 0, 0, 0
    return path, resolved, status.st_mtime_ns, status.st_size, status.st_ino
