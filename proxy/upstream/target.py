"""An upstream as the data path uses it: address, path mapping and credentials, worked out once per set."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import unquote, urlsplit

from proxy.core.upstream import Provider, Upstream
from proxy.http.client import WaitLimits
from proxy.http.deadlines import NEVER
from proxy.http.dial import Address, HttpProxy
from proxy.http.head import Header
from proxy.http.tls import client_context
from proxy.upstream.request_head import Sender

_ROUTED_PREFIX = b"/v1"
_DEFAULT_PORTS = {"http": 80, "https": 443}


@dataclass(frozen=True, slots=True)
class Target:
    """One upstream, ready to send to.

    `base_path` takes the place of a leading `/v1` of the request target. `absolute_prefix` comes before the
    path where plain HTTP goes through a forward proxy (RFC 9112 section 3.2.2).
    """

    upstream: Upstream
    address: Address
    sender: Sender
    base_path: bytes
    wait: WaitLimits
    absolute_prefix: bytes = b""

    @property
    def name(self) -> str:
        """The upstream's configured name."""
        return self.upstream.name

    def request_target(self, target: bytes) -> bytes:
        """Map a request target: `/v1/x` to the base path, any other path as it is; the query untouched."""
        path = target
        if target.startswith(_ROUTED_PREFIX) and target[3:4] in (b"/", b"?", b""):
            path = self.base_path + target[3:]
            if not path.startswith(b"/"):
                path = b"/" + path
        return self.absolute_prefix + path


def make_target(upstream: Upstream, environment: Mapping[str, str]) -> Target:
    """Work out how to reach `upstream`. Raises ValueError or OSError for what cannot be used.

    `environment` is consulted for `HTTPS_PROXY`, `HTTP_PROXY`, `ALL_PROXY` and `NO_PROXY` (either case)
    where the upstream says `proxy: env`.
    """
    url = urlsplit(upstream.base_url)
    host = url.hostname
    if url.scheme not in _DEFAULT_PORTS or not host:
        raise ValueError(f"upstream {upstream.name}: base_url must be http:// or https:// with a host")
    port = url.port or _DEFAULT_PORTS[url.scheme]
    shown_host = f"[{host}]" if ":" in host else host
    authority = shown_host if port == _DEFAULT_PORTS[url.scheme] else f"{shown_host}:{port}"
    proxy = None if upstream.unix_socket else _proxy_for(upstream, url.scheme, host, environment)
    is_tls = url.scheme == "https"
    context = None
    if is_tls:
        tls = upstream.tls
        try:
            context = client_context(tls.ca, tls.client_certificate, tls.client_key, tls.verify)
        except OSError as problem:
            raise OSError(f"upstream {upstream.name}: {problem}") from None
    via_plain_proxy = proxy is not None and not is_tls
    address = Address(
        host=proxy.host if proxy is not None and via_plain_proxy else host,
        port=proxy.port if proxy is not None and via_plain_proxy else port,
        unix_socket=upstream.unix_socket,
        tls=context,
        server_name=upstream.tls.server_name,
        tunnel=None if via_plain_proxy else proxy,
    )
    authorization: Header | None = None
    if proxy is not None and via_plain_proxy and proxy.authorization is not None:
        authorization = (
            b"proxy-authorization",
            b"Proxy-Authorization",
            proxy.authorization.encode("latin-1"),
        )
    timeouts = upstream.timeouts
    return Target(
        upstream=upstream,
        address=address,
        sender=Sender(authority.encode("latin-1"), _credential(upstream), authorization),
        base_path=url.path.rstrip("/").encode("ascii"),
        wait=WaitLimits(*map(_limit, (timeouts.first_byte, timeouts.idle, timeouts.total))),
        absolute_prefix=f"http://{authority}".encode("latin-1") if via_plain_proxy else b"",
    )


def _limit(seconds: float | None) -> float:
    return NEVER if seconds is None else seconds


def _credential(upstream: Upstream) -> Header | None:
    """Return the header in which the upstream's provider takes a key."""
    if upstream.api_key is None:
        return None
    key = upstream.api_key.reveal().encode("latin-1")
    match upstream.provider:
        case Provider.AZURE:
            return (b"api-key", b"api-key", key)
        case Provider.ANTHROPIC:
            return (b"x-api-key", b"x-api-key", key)
        case _:
            return (b"authorization", b"Authorization", b"Bearer " + key)


def _proxy_for(
    upstream: Upstream, scheme: str, host: str, environment: Mapping[str, str]
) -> HttpProxy | None:
    if upstream.proxy == "off":
        return None
    url = upstream.proxy
    if url == "env":
        # HTTP_PROXY in upper case is not read: a CGI-style environment lets callers set it (httpoxy).
        names = ["https_proxy", "HTTPS_PROXY"] if scheme == "https" else ["http_proxy"]
        url = next(
            (environment[name] for name in [*names, "all_proxy", "ALL_PROXY"] if environment.get(name)), ""
        )
        if not url or _is_excluded(host, environment.get("no_proxy") or environment.get("NO_PROXY") or ""):
            return None
    parts = urlsplit(url if "://" in url else f"http://{url}")
    if parts.scheme != "http" or not parts.hostname:
        raise ValueError(f"upstream {upstream.name}: only http:// forward proxies are supported")
    user = unquote(parts.username) if parts.username is not None else None
    password = unquote(parts.password) if parts.password is not None else None
    return HttpProxy.with_credentials(parts.hostname, parts.port or 80, user, password)


def _is_excluded(host: str, no_proxy: str) -> bool:
    """Tell whether `NO_PROXY` names `host`: `*`, the host itself, or a domain that it ends in."""
    for entry in no_proxy.split(","):
        name = entry.strip().lower().split(":")[0] if entry.count(":") <= 1 else entry.strip().lower()
        if name == "*" or (name and (host == name or host.endswith("." + name.lstrip(".")))):
            return True
    return host in ("localhost", "127.0.0.1", "::1")
