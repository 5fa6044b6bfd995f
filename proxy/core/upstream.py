"""An upstream as an operator describes it: where it is, who runs it, with which key and which patience."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum


class Provider(Enum):
    """Who runs an upstream: decides the credential header and what the provider's API can do."""

    OPENAI = "openai"
    AZURE = "azure"
    ANTHROPIC = "anthropic"
    GEMINI = "gemini"
    MISTRAL = "mistral"
    GROQ = "groq"
    TOGETHER = "together"
    OPENROUTER = "openrouter"
    VLLM = "vllm"
    LLAMACPP = "llamacpp"
    GENERIC = "generic"


class Secret:
    """A value that never shows: `repr` and `str` are masked, `reveal` is the only way out."""

    __slots__ = ("_value",)

    def __init__(self, value: str) -> None:
        self._value = value

    def reveal(self) -> str:
        """Return the secret itself."""
        return self._value

    def __repr__(self) -> str:
        return "Secret(***)"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and other._value == self._value

    def __hash__(self) -> int:
        return hash(self._value)


@dataclass(frozen=True, slots=True)
class Timeouts:
    """Limits on waiting for an upstream, in seconds; `None` is no limit.

    connect     until the connection (TLS included) stands
    first_byte  from the request's last byte to the first byte of the answer
    idle        between two reads of an answer that has begun
    total       over the whole exchange
    """

    connect: float | None = 5.0
    first_byte: float | None = 600.0
    idle: float | None = 60.0
    total: float | None = None


@dataclass(frozen=True, slots=True)
class UpstreamTls:
    """TLS towards an upstream, beyond the system's trust store. Paths are files."""

    ca: str | None = None
    client_certificate: str | None = None
    client_key: str | None = None
    server_name: str | None = None
    verify: bool = True


@dataclass(frozen=True, slots=True)
class ServedBatchApi:
    """How Weir works off batches of its own for an upstream without a batch API.

    max_in_flight  most lines that are sent there at once
    may_meet       share of callers' requests that may meet lines which may slow them down, above 0, at most 1
    give_way       lines are cut off when a caller's request comes that they may slow down
    priority       what a line says to a server that knows priorities (vLLM: higher numbers wait longer)
    webhook        name of the configured webhook that hears of ended batches, empty for none

    By default 1 % may meet lines: if all of these became the slowest answers, the 95th percentile would be
    what the 96th is without lines.
    """

    max_in_flight: int = 32
    may_meet: float = 0.01
    give_way: bool = False
    priority: int = 100
    webhook: str = ""


@dataclass(frozen=True, slots=True)
class Upstream:
    """An API that requests are forwarded to.

    `unix_socket` is a socket path to connect to instead of the host of `base_url`. `retry_statuses` are
    statuses (429, 503) that may be retried before anything was sent to the caller, at most `retries` times.
    `batch_api` says that Weir answers `/v1/files` and `/v1/batches` for it; `None`: they pass through.
    """

    name: str
    base_url: str
    api_key: Secret | None = None
    provider: Provider = Provider.GENERIC
    timeouts: Timeouts = Timeouts()
    max_connections: int = 0
    tls: UpstreamTls = UpstreamTls()
    unix_socket: str | None = None
    proxy: str = field(default="env", repr=False)
    retry_statuses: tuple[int, ...] = ()
    retries: int = 0
    batch_api: ServedBatchApi | None = None
