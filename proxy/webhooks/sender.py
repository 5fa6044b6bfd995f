"""Calls webhooks: one signed POST per try, and what follows from its answer.

    sender = Sender(clock, metrics, webhooks, environment)     # in the event loop
    told = await sender.tell("ops", event, tries=0, until=…)   # never raises
    await sender.close()

Owns the clients, what is known of each address's health, and the metrics. It calls what the policies in force
name and nothing else; a redirect is a failure; of an answer only the status counts.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from urllib.parse import urlsplit

from proxy.core.clock import Clock
from proxy.core.globs import fits
from proxy.core.upstream import Timeouts, Upstream
from proxy.core.webhook import Webhook
from proxy.observe import catalogue
from proxy.observe.metrics import Metrics
from proxy.upstream.providers.client import CallFailed, ProviderClient, Reply
from proxy.webhooks.event import Event
from proxy.webhooks.health import Health
from proxy.webhooks.schedule import delay_seconds, next_try
from proxy.webhooks.signing import signed_headers

_log = logging.getLogger("weir")

BUSY_CALLS = 8
"""So many calls at once to one address, and it is asked to take no more."""

_GONE = 410
_READ_BYTES = 4_096
_JSON = ("Content-Type", "application/json")


class Failure(Enum):
    """Why a try failed: a label of `weir_webhook_failures_total`."""

    NO_ANSWER = "no_answer"
    STATUS = "status"
    REDIRECT = "redirect"
    GONE = "gone"
    UNKNOWN = "unknown_webhook"


@dataclass(frozen=True, slots=True)
class Told:
    """What became of telling.

    due     when to try again, in seconds since the epoch; `None`: it is told, not wanted, or given up
    note    which of that, for people
    is_try  the address was called in vain, so that the next delay is longer
    """

    due: float | None
    note: str
    is_try: bool = False


@dataclass(frozen=True, slots=True)
class _Failed:
    kind: Failure
    note: str
    retry_after_seconds: float = 0.0


class Sender:
    """Tells events to the webhooks that `webhooks` returns: those in force. `draw`: 0 to 1, for jitter."""

    def __init__(
        self,
        clock: Clock,
        metrics: Metrics,
        webhooks: Callable[[], Mapping[str, Webhook]],
        environment: Mapping[str, str],
        draw: Callable[[], float],
    ) -> None:
        self._clock = clock
        self._metrics = metrics
        self._webhooks = webhooks
        self._environment = environment
        self._draw = draw
        self._clients: dict[str, tuple[Webhook, ProviderClient]] = {}
        self._retired: list[ProviderClient] = []
        self._healths: dict[str, Health] = {}
        self._in_flight: Counter[str] = Counter()

    async def close(self) -> None:
        """Close every connection."""
        for client in [*self._retired, *(client for _, client in self._clients.values())]:
            await client.close()
        self._retired, self._clients = [], {}

    def busy(self) -> frozenset[str]:
        """Return the webhooks that should not be given more to tell now."""
        return frozenset(name for name, calls in self._in_flight.items() if calls >= BUSY_CALLS)

    def measure(self) -> None:
        """Bring the gauge up to date: one series for each webhook in force."""
        self._metrics.clear(catalogue.WEBHOOK_DISABLED)
        for name in self._webhooks():
            is_disabled = self._healths.get(name, Health()).is_disabled
            self._metrics.set(catalogue.WEBHOOK_DISABLED, (name,), float(is_disabled))

    async def tell(self, name: str, event: Event, tries: int, until: float) -> Told:
        """Tell an event, unless its webhook does not want it or is left alone. `tries`: that have failed."""
        webhook = self._webhooks().get(name)
        if webhook is None:
            failed = _Failed(Failure.UNKNOWN, "the policies have no webhook of that name")
            return self._failed(name, failed, tries, until)
        if not any(fits(pattern, event.type) for pattern in webhook.events):
            return Told(None, f"not told: {event.type} is not among the webhook's events")
        wait = self._health(webhook).wait_seconds(self._clock.monotonic())
        if wait > 0:
            return self._again(name, wait, "the webhook is disabled", until)
        failed_or_none = await self._call(webhook, event)
        if failed_or_none is None:
            return Told(None, "told")
        return self._failed(name, failed_or_none, tries, until)

    def _health(self, webhook: Webhook) -> Health:
        known = self._clients.get(webhook.name)
        if known is not None and known[0].url != webhook.url:
            self._healths.pop(webhook.name, None)  # another address
        return self._healths.get(webhook.name, Health())

    async def _call(self, webhook: Webhook, event: Event) -> _Failed | None:
        name = webhook.name
        self._healths[name] = self._health(webhook).probing(self._clock.monotonic())
        self._in_flight[name] += 1
        try:
            status, retry_after_seconds = await self._post(webhook, event)
        except CallFailed as problem:
            failed = _Failed(Failure.NO_ANSWER, str(problem))
        else:
            if 200 <= status < 300:
                self._succeeded(name)
                return None
            failed = _Failed(_kind_of(status), f"it answered {status}", retry_after_seconds)
        finally:
            self._in_flight[name] -= 1
            if not self._in_flight[name]:
                del self._in_flight[name]
        self._note_failure(name, is_gone=failed.kind is Failure.GONE)
        return failed

    async def _post(self, webhook: Webhook, event: Event) -> tuple[int, float]:
        body = event.body()
        headers = signed_headers(webhook.secrets, event.id, int(self._clock.wall()), body)
        answered: tuple[int, float] | None = None
        try:
            async with self._client(webhook).stream(
                "POST",
                _path_of(webhook.url),
                headers=[*headers, _JSON],
                body=body,
                total_seconds=webhook.timeout_seconds,
            ) as (reply, pieces):
                answered = reply.status, _retry_after(reply)
                size = 0
                async for piece in pieces:
                    size += len(piece)
                    if size > _READ_BYTES:
                        break
        except CallFailed:
            # Its word has come with the status, whatever became of the rest.
            if answered is None:
                raise
        assert answered is not None
        return answered

    def _client(self, webhook: Webhook) -> ProviderClient:
        """Return the client of a webhook. Raises `CallFailed` for one that cannot be called at all."""
        known = self._clients.get(webhook.name)
        if known is not None and known[0] == webhook:
            return known[1]
        parts = urlsplit(webhook.url)
        timeouts = Timeouts(connect=webhook.timeout_seconds, first_byte=webhook.timeout_seconds)
        # A client maps `/v1/x` to its base URL: with this one every path stands for itself.
        base_url = f"{parts.scheme}://{parts.netloc}/v1"
        try:
            client = ProviderClient.for_upstream(
                Upstream(f"webhook {webhook.name}", base_url, timeouts=timeouts), self._environment
            )
        except (OSError, ValueError) as problem:
            raise CallFailed(str(problem), may_have_happened=False) from None
        if known is not None:
            self._retired.append(known[1])
        self._clients[webhook.name] = (webhook, client)
        return client

    # ---- what follows

    def _succeeded(self, name: str) -> None:
        self._metrics.add(catalogue.WEBHOOK_SENT, (name,))
        if self._healths.pop(name, Health()).is_disabled:
            _log.warning("webhook %s answers again: it is enabled", name)

    def _note_failure(self, name: str, *, is_gone: bool) -> None:
        before = self._healths.get(name, Health())
        after = self._healths[name] = before.failed(self._clock.monotonic(), is_gone=is_gone)
        if after.is_disabled and not before.is_disabled:
            why = "it answered 410" if is_gone else f"{after.failures} calls in a row failed"
            _log.error("webhook %s is disabled, %s: from now on it is tried once an hour", name, why)

    def _failed(self, name: str, failed: _Failed, tries: int, until: float) -> Told:
        self._metrics.add(catalogue.WEBHOOK_FAILURES, (name, failed.kind.value))
        wait = delay_seconds(tries + 1, self._draw(), failed.retry_after_seconds)
        told = self._again(name, wait, failed.note, until)
        return Told(told.due, told.note, is_try=True)

    def _again(self, name: str, wait_seconds: float, note: str, until: float) -> Told:
        due = next_try(self._clock.wall(), wait_seconds, until)
        if due is not None:
            return Told(due, note)
        self._metrics.add(catalogue.WEBHOOK_GIVEN_UP, (name,))
        return Told(None, f"given up: {note}")


def _kind_of(status: int) -> Failure:
    if status == _GONE:
        return Failure.GONE
    return Failure.REDIRECT if 300 <= status < 400 else Failure.STATUS


def _retry_after(reply: Reply) -> float:
    said = reply.headers.get("retry-after", "")
    return float(said) if said.isascii() and said.isdigit() and len(said) < 10 else 0.0


def _path_of(url: str) -> str:
    parts = urlsplit(url)
    return (parts.path or "/") + (f"?{parts.query}" if "?" in url else "")
