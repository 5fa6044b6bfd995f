"""Owns noticing that policies have changed and replacing them whole, or not at all.

It looks at files by polling, once per call: a watch on a path misses a Kubernetes ConfigMap update, which
swaps a symbolic link and never touches the file. A set that cannot be used leaves the current one in place.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence

from proxy.policy.findings import Finding
from proxy.policy.load import read
from proxy.policy.model import PolicySet, Upstream
from proxy.policy.sources import signature

_log = logging.getLogger("weir")

Report = Callable[[tuple[Finding, ...]], None]
"""Receives what is wrong with a set that was not taken over."""


class PolicyWatcher:
    """The current policy set of a path and the way to its next version.

    `report` is called once per distinct list of findings, however often the same bad files are read again.
    Not thread-safe: call from one place at a time. `changed` costs a few `stat` calls per file, `reload`
    reads and parses everything and belongs into a thread where the files are large.
    """

    def __init__(
        self,
        paths: Sequence[str],
        env: Mapping[str, str],
        fallback_upstream: Upstream | None,
        report: Report,
        current: PolicySet,
    ) -> None:
        """Watch `paths`, of which `current` is what was loaded at the start."""
        self._paths = tuple(paths)
        self._env = env
        self._fallback_upstream = fallback_upstream
        self._report = report
        self._reported: tuple[Finding, ...] = ()
        self._referenced: tuple[str, ...] = ()
        self._seen: object = None
        self.current = current
        self.failed = False
        """Whether the files as they are now cannot be used, so that `current` is older than they are."""

    def changed(self) -> bool:
        """Tell whether any policy file, or file named by `${file:…}`, differs from what was last read."""
        return bool(self._paths) and signature(self._paths, self._referenced) != self._seen

    def reload(self) -> PolicySet:
        """Read the files and return the set to use from now on: the new one, or the current one.

        The very object that was current is returned when nothing effective has changed, too. Files that
        change while they are read are read again at the next call.
        """
        before = signature(self._paths, self._referenced)
        reading = read(self._paths, self._env, self._fallback_upstream)
        self._seen = signature(self._paths, self._referenced)
        if self._seen != before:
            self._seen = None
            return self.current
        if reading.referenced != self._referenced:
            # How these files looked when they were read nobody knows: the next look reads once more.
            self._referenced = reading.referenced
            self._seen = None
        self.failed = reading.policies is None
        if reading.policies is None:
            self._report_once(reading.findings)
        else:
            if self._reported and reading.policies == self.current:
                _log.info("policies on disk are valid again, and the same as those in force")
            self._reported = ()
            if reading.policies != self.current:
                self.current = reading.policies
        return self.current

    def _report_once(self, findings: tuple[Finding, ...]) -> None:
        if findings != self._reported:
            self._reported = findings
            self._report(findings)
