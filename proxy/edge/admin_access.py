"""Who may use the admin API: no web page, whatever name it has given to this address.

Owns two refusals: requests that a page of another origin makes a browser send (`Origin`), and requests for a
name with a dot that is not ours (`Host`), which is how a page reaches a private address under its own name
(DNS rebinding). Probes and metrics are open: they tell nothing about callers and change nothing.
"""

from __future__ import annotations

import ipaddress
from urllib.parse import urlsplit

OPEN_PATHS = frozenset({"/healthz", "/readyz", "/metrics"})


def refusal(path: str, host: str | None, origin: str | None, listen: str) -> str | None:
    """Return why a request is refused, `None` where it is not. `listen` is the listener's own setting.

    Addresses, names without a dot, names below `localhost` and the name that is listened on are ours: no
    foreign page can have them for its own.
    """
    if path in OPEN_PATHS:
        return None
    if origin is not None and (host is None or urlsplit(origin).netloc.lower() != host.lower()):
        return "the admin API takes no requests from web pages of another origin"
    if listen.startswith("unix:") or _is_ours(_name(host or ""), _name(listen)):
        return None
    return "this Host is not the admin API's: ask by its address, or by the name that it listens on"


def _name(host: str) -> str:
    """Return a host without its port, in lower case, an IPv6 address without brackets."""
    host = host.strip().lower()
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.rpartition(":")[0] if host.count(":") == 1 else host


def _is_ours(name: str, listened: str) -> bool:
    if "." not in name or name == listened or name.endswith(".localhost"):
        return True
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
