"""Static settings of a process: flags and `WEIR_*` environment, read once, frozen.

What may change while serving stands in policies instead.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Settings:
    """How `weir serve` runs. Durations are seconds, sizes bytes.

    `listen` and `admin` are `HOST:PORT` or `unix:PATH`; `admin` may be `off`. `access_log` is a path, `-`
    for standard output or `off`. `store` is where jobs are kept, `off`, or `None`: a file beside the process
    if any route defers. `prices` is a file of prices that count before the shipped ones. `secret_key` seals
    what is kept.
    """

    policies: tuple[str, ...] = ()
    listen: str = "127.0.0.1:8080"
    admin: str = "127.0.0.1:8081"
    workers: int = 1
    access_log: str = "-"
    log_format: str = "json"
    upstream_url: str | None = None
    upstream_key: str | None = field(default=None, repr=False)
    tls_certificate: str | None = None
    tls_key: str | None = None
    tls_client_ca: str | None = None
    drain_delay_seconds: float = 0.0
    drain_timeout_seconds: float = 30.0
    head_bytes: int = 64 * 1024
    upstream_head_bytes: int = 128 * 1024
    header_seconds: float = 30.0
    body_seconds: float = 60.0
    keep_alive_seconds: float = 75.0
    write_stall_seconds: float = 30.0
    uploads_at_once: int = 32
    store: str | None = field(default=None, repr=False)
    job_retention_seconds: float = 86_400.0
    prices: str | None = None
    secret_key: str | None = field(default=None, repr=False)


def default_upstream(environment: dict[str, str]) -> tuple[str | None, str | None]:
    """Return base URL and key of the upstream that the environment names, `(None, None)` if it names none.

    `WEIR_UPSTREAM` with an optional `WEIR_UPSTREAM_KEY`; else OpenAI where `OPENAI_API_KEY` is set. That key
    is never sent anywhere else.
    """
    url = environment.get("WEIR_UPSTREAM")
    if url:
        return url, environment.get("WEIR_UPSTREAM_KEY") or None
    key = environment.get("OPENAI_API_KEY")
    return ("https://api.openai.com/v1", key) if key else (None, None)
