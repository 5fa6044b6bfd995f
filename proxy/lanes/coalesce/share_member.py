"""One caller of a shared call: it reads at its own pace, and leaves without the others noticing.

Owns what this caller has not taken yet, within a bound of its own and one for all callers together. One that
stays behind by more is let go.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from typing import Protocol

from proxy.core.decision import ClosedBy, Pooled, Strategy
from proxy.core.errors import INTERNAL, SLOW_READER, ProxyError
from proxy.core.exchange import Exchange
from proxy.http.client import ResponseHandler
from proxy.http.head import ResponseHead
from proxy.lanes.coalesce.share_rules import Form, Serving, ShareLimits
from proxy.lanes.lane import Call, Lane, Outgoing

_BLOCK_BYTES = 64 * 1024
_log = logging.getLogger("weir")


class Company(Protocol):
    """The call that a member belongs to."""

    def left(self, member: Member) -> None:
        """Take note that a member is gone or served."""
        ...

    def flow_changed(self) -> None:
        """Take note that a member reads again, or not any more."""
        ...

    def may_lag(self, added_bytes: int) -> bool:
        """Ask for memory for what a member has not taken yet; a negative number gives some back."""
        ...


class Member:
    """A caller's `Call`. After `end`, or `left` for another reason, its reply is told nothing more."""

    __slots__ = (
        "_behind",
        "_behind_bytes",
        "_company",
        "_ending",
        "_granted_bytes",
        "_may_behind_bytes",
        "_near_bytes",
        "_own",
        "exchange",
        "form",
        "has_head",
        "is_open",
        "is_paused",
        "is_settled",
        "joined_at",
        "outgoing",
        "reply",
        "serving",
    )

    def __init__(
        self,
        company: Company,
        outgoing: Outgoing,
        exchange: Exchange,
        reply: ResponseHandler,
        form: Form,
        serving: Serving,
        joined_at: float,
        limits: ShareLimits,
    ) -> None:
        self._company = company
        self._behind: deque[bytes] = deque()
        self._behind_bytes = 0
        self._granted_bytes = 0
        self._may_behind_bytes = limits.behind
        self._near_bytes = limits.near
        self._ending: ProxyError | bool = False
        self._own: Call | None = None
        self.outgoing = outgoing
        self.exchange = exchange
        self.reply = reply
        self.form = form
        self.serving = serving
        self.joined_at = joined_at
        self.has_head = False
        self.is_open = True
        self.is_paused = False
        self.is_settled = False

    # --- the edge's side ------------------------------------------------------------------------------

    def send_body(self, data: bytes) -> None:
        """Bodies of pooled requests are whole before they are carried."""

    def end_body(self) -> None:
        """Bodies of pooled requests are whole before they are carried."""

    def pause(self) -> None:
        """Tell this caller nothing for now."""
        self.is_paused = True
        if self._own is not None:
            self._own.pause()
        elif self.is_open:
            self._company.flow_changed()

    def resume(self) -> None:
        """Tell it what it missed, then go on."""
        self.is_paused = False
        if self._own is not None:
            self._own.resume()
        elif self.is_open:
            self.catch_up()
            if self.is_open:
                self._company.flow_changed()

    def detach(self) -> tuple[asyncio.Transport, bytes] | None:
        """Give nothing away: a shared connection cannot be one caller's tunnel."""
        return None

    def cancel(self) -> None:
        """Leave. The call goes on as long as anyone is left."""
        own, self._own = self._own, None
        if own is not None:
            own.cancel()
        elif self.is_open:
            self._close()

    # --- the call's side ------------------------------------------------------------------------------

    def replay(self, head: ResponseHead, kept: list[bytes], loop: asyncio.AbstractEventLoop) -> None:
        """Have a late joiner told everything from the beginning, once whoever asked holds its `Call`."""
        self._behind.extend(kept)
        self._behind_bytes = sum(map(len, kept))
        self._may_behind_bytes += self._behind_bytes
        loop.call_soon(self._begin_late, head)

    def _begin_late(self, head: ResponseHead) -> None:
        self.take_head(head)
        self.catch_up()
        if not self.is_open:
            return
        if self._behind:
            self._check_lag()
        else:
            self.flush()

    def take_head(self, head: ResponseHead) -> None:
        """Tell the head, which no pause holds back."""
        if self.is_open:
            self.has_head = True
            self._tell(self.reply.head_received, head)

    def take(self, data: bytes) -> None:
        """Tell body bytes, now or when the caller reads again."""
        if self.has_head and not self._behind and not self.is_paused:
            try:
                self.reply.body_received(data)
            except Exception as problem:
                self._broken(problem)
            return
        self._behind.append(data)
        self._behind_bytes += len(data)
        self._check_lag()

    def _check_lag(self) -> None:
        """Let this caller go if it is too far behind, or if all callers together are."""
        wanted_bytes = self._behind_bytes - self._near_bytes - self._granted_bytes
        is_allowed = self._behind_bytes <= self._may_behind_bytes
        if is_allowed and wanted_bytes > 0:
            blocks_bytes = -(-wanted_bytes // _BLOCK_BYTES) * _BLOCK_BYTES
            is_allowed = self._company.may_lag(blocks_bytes)
            self._granted_bytes += blocks_bytes if is_allowed else 0
        if not is_allowed:
            message = "This caller read the shared answer too slowly to be waited for."
            self._fail(ProxyError(SLOW_READER, message))

    def _give_back(self) -> None:
        if self._granted_bytes:
            self._company.may_lag(-self._granted_bytes)
            self._granted_bytes = 0

    def flush(self) -> None:
        """Tell that a head came alone."""
        if self.is_open and self.has_head:
            self._tell(self.reply.flush)

    def catch_up(self) -> None:
        """Tell what was missed, as far as the caller reads."""
        while self._behind and self.has_head and self.is_open and not self.is_paused:
            data = self._behind.popleft()
            self._behind_bytes -= len(data)
            self._tell(self.reply.body_received, data)
        if not self._behind:
            self._give_back()
        if not self._behind and self._ending is not False and self.is_open and self.has_head:
            self._end_now()

    def end(self, error: ProxyError | None = None) -> None:
        """End this caller's answer once it has taken all of it, as a whole one or with `error`."""
        self._ending = True if error is None else error
        if not self._behind and (self.has_head or error is not None):
            self._end_now()

    def take_whole(self, head: ResponseHead, body: bytes) -> None:
        """Tell a complete answer."""
        self.take_head(head)
        if self.is_open and body:
            self._tell(self.reply.body_received, body)
        if self.is_open:
            self.end()

    def go_alone(self, direct: Lane, now: float) -> None:
        """Send this caller's own request: what the others get would not do for it."""
        if not self.is_settled:
            # Otherwise it has been told its share of the call's times, and the rest counts as an attempt.
            self.exchange.queue_seconds += now - self.joined_at
        self.is_settled = True
        self._close()
        self.exchange.pooled = Pooled(Strategy.SHARE, 1, ClosedBy.IDLE, is_leader=True)
        self._own = direct.carry(self.outgoing, self.exchange, self.reply)
        if self.is_paused:
            self._own.pause()

    @property
    def may_fall_behind(self) -> bool:
        """Whether this caller is told bytes as they come and does not take them now."""
        return self.is_paused and self.serving is Serving.RAW

    def _end_now(self) -> None:
        ending = self._ending
        self._close()
        if isinstance(ending, ProxyError):
            self._tell_last(ending)
        else:
            self._tell(self.reply.response_ended)

    def _fail(self, error: ProxyError) -> None:
        self._close()
        self._tell_last(error)

    def _tell(self, tell: Callable[..., None], *values: object) -> None:
        """Tell the reply something. A fault in one caller's answer stays its own."""
        try:
            tell(*values)
        except Exception as problem:
            self._broken(problem)

    def _broken(self, problem: Exception) -> None:
        _log.error("a shared answer could not be relayed", exc_info=problem)
        if self.is_open:
            self._close()
        self._tell_last(ProxyError(INTERNAL, f"Weir failed on this answer ({type(problem).__name__})."))

    def _tell_last(self, error: ProxyError) -> None:
        try:
            self.reply.failed(error)
        except Exception as problem:
            _log.error("a shared answer's failure could not be told", exc_info=problem)

    def _close(self) -> None:
        self.is_open = False
        self._behind.clear()
        self._behind_bytes = 0
        self._give_back()
        self._company.left(self)
