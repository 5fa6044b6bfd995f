"""Owns which request paths lead into an upstream's API without saying `/v1`, and what they are called then.

A path outside `/v1` goes to the origin of its upstream as it is. Where that leads below a base path, it asks
for what `/v1` stands for: a limit on `/v1/chat/completions` must hold for `/openai/v1/chat/completions`, too.
Pure: no I/O, no state. It refuses nothing; how a path may be spelt is the edge's to say.
"""

from __future__ import annotations

from urllib.parse import unquote, urlsplit

from proxy.core.upstream import Upstream
from proxy.policy.model import Match, PolicySet

ROUTED_PREFIX = "/v1"
_DEFAULT_PORTS = {"http": 80, "https": 443}

_Origin = tuple[str, str | None, int | None, str | None]


class BasePaths:
    """The base paths of a policy set's upstreams, by origin. All paths here are in lower case."""

    __slots__ = ("_by_upstream", "_reachable")

    def __init__(self, policies: PolicySet) -> None:
        upstreams = policies.upstreams
        by_origin: dict[_Origin, set[str]] = {}
        for upstream in upstreams.values():
            by_origin.setdefault(_origin(upstream), set()).add(_base_path(upstream))
        self._by_upstream = {
            name: frozenset(by_origin[_origin(upstream)]) for name, upstream in upstreams.items()
        }
        leading = {policies.default_upstream} | {
            route.upstream
            for route in policies.routes
            if route.upstream is not None and _takes_other_paths(route.match)
        }
        found = set().union(*(self._by_upstream[name] for name in leading if name in upstreams))
        self._reachable = tuple(sorted(found, key=len, reverse=True))

    def base_of(self, path: str) -> str | None:
        """Return the base path that a lower-case `path` lies below, the longest; `None` if it says `/v1`."""
        if is_below(path, ROUTED_PREFIX):
            return None
        return next((base for base in self._reachable if is_below(path, base)), None)

    def names(self, path: str) -> tuple[str, ...]:
        """Return what a lower-case `path` is called: itself, and its name below `/v1` where it has one."""
        base = self.base_of(path)
        return (path,) if base is None else (ROUTED_PREFIX + path[len(base) :], path)

    def leads_there(self, base: str, upstream: str) -> bool:
        """Tell whether a path below `base` reaches an API at the origin of `upstream` as it is."""
        return base in self._by_upstream[upstream]


def is_below(path: str, base: str) -> bool:
    """Tell whether `path` is `base` or lies below it."""
    return path.startswith(base) and path[len(base) : len(base) + 1] in ("", "/")


def _takes_other_paths(match: Match) -> bool:
    return not match.path or any(
        "*" in pattern and not is_below(pattern.lower(), ROUTED_PREFIX) for pattern in match.path
    )


def _base_path(upstream: Upstream) -> str:
    return unquote(urlsplit(upstream.base_url).path).lower().rstrip("/")


def _origin(upstream: Upstream) -> _Origin:
    url = urlsplit(upstream.base_url)
    return url.scheme, url.hostname, url.port or _DEFAULT_PORTS.get(url.scheme), upstream.unix_socket
