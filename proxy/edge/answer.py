"""The downstream side of one answer: its framing and its end. Knows nothing about what the bytes mean."""

from __future__ import annotations

from proxy.core.exchange import Exchange
from proxy.edge.response_head import write_response_head
from proxy.http.framing import LAST_CHUNK, Framing, response_framing
from proxy.http.head import RequestHead, ResponseHead
from proxy.http.server import ServerConnection


class Answer:
    """Writes one response to a caller. `begin` once, then `write`, then one of the ends."""

    __slots__ = ("_connection", "_exchange", "_framing", "_keep_alive", "_request", "_unsent", "has_begun")

    def __init__(self, connection: ServerConnection, request: RequestHead, exchange: Exchange) -> None:
        self._connection = connection
        self._request = request
        self._exchange = exchange
        self._framing = Framing.NONE
        self._keep_alive = request.keep_alive and request.version == "1.1"
        self._unsent = b""
        self.has_begun = False

    @property
    def keep_alive(self) -> bool:
        """Whether the connection may serve another request afterwards."""
        return self._keep_alive and not self._connection.closes_next

    def begin(self, head: ResponseHead, report: bytes, is_stream: bool, is_rewritten: bool) -> None:
        """Commit: the head leaves with the first body bytes, or with `flush`.

        `is_rewritten` says that the body may differ from the upstream's in length.
        """
        length = None if is_rewritten else head.content_length
        request = self._request
        framing = self._framing = response_framing(request.method, request.version, head.status, length)
        self._keep_alive = self.keep_alive and framing is not Framing.CLOSE
        self._exchange.status = head.status
        self.has_begun = True
        if framing is Framing.CLOSE:
            # Nothing but a reset tells an end of this connection, for whatever reason, from the body's.
            self._connection.ends_body(is_whole=False)
        self._unsent = write_response_head(head, framing, report, self._keep_alive, is_stream)

    def write(self, data: bytes) -> None:
        """Send body bytes."""
        framing = self._framing
        if not data or framing is Framing.NONE:
            return
        self._exchange.response_bytes += len(data)
        if framing is Framing.CHUNKED:
            data = b"%x\r\n%b\r\n" % (len(data), data)
        if self._unsent:
            data, self._unsent = self._unsent + data, b""
            self._connection.write(data)
        else:
            # Made for each event of a stream: one call less than through the connection.
            self._connection.transport.write(data)

    def flush(self) -> None:
        """Send a head that has not left together with the first body bytes."""
        if self._unsent:
            unsent, self._unsent = self._unsent, b""
            self._connection.write(unsent)

    def end(self) -> None:
        """End the answer as a whole one."""
        self.flush()
        if self._framing is Framing.CHUNKED:
            self._connection.write(LAST_CHUNK)
        elif self._framing is Framing.CLOSE:
            self._connection.ends_body(is_whole=True)
        self._connection.finish(self._keep_alive)

    def send_whole(self, response: bytes, status: int) -> None:
        """Send a response that is already framed (an error of Weir's own)."""
        self._exchange.status = status
        self.has_begun = True
        self._connection.write(response)
        self._connection.finish(self._keep_alive)

    def send_json(self, body: bytes, report: bytes) -> None:
        """Send a whole JSON answer of Weir's own. `report` holds Weir's header lines."""
        fields = [(b"content-type", b"Content-Type", b"application/json")]
        fields.append((b"content-length", b"Content-Length", b"%d" % len(body)))
        self.begin(ResponseHead(200, b"OK", fields), report, is_stream=False, is_rewritten=False)
        self.write(body)
        self.end()

    def break_off(self) -> None:
        """End the answer so that it cannot pass for whole: what was written is sent, its end never comes."""
        self.flush()
        if self._framing is Framing.CLOSE:
            self._connection.break_off()
        else:
            self._connection.finish(False)
