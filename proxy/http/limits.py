"""Every bound of the data path's HTTP, in one place. Sizes are bytes, durations seconds."""

from __future__ import annotations

from dataclasses import dataclass

KIB = 1024


@dataclass(frozen=True, slots=True)
class ServerLimits:
    """Bounds on what a caller may send and how long it may take.

    head_bytes        request line and headers together
    header_count      number of header lines
    header_seconds    from the first byte of a request (or from accept) until its head is complete
    body_seconds      between two reads of a body
    keep_alive        idle time between requests
    write_stall       how long a caller may read nothing while an answer waits for it
    pipelined_bytes   bytes held for requests that came before the current one was answered
    linger_seconds    how long a caller that is still sending may be silent after the last answer it gets
    """

    head_bytes: int = 64 * KIB
    header_count: int = 200
    header_seconds: float = 30.0
    body_seconds: float = 60.0
    keep_alive: float = 75.0
    write_stall: float = 30.0
    pipelined_bytes: int = 256 * KIB
    write_buffer_bytes: int = 64 * KIB
    linger_seconds: float = 2.0
    linger_total_seconds: float = 30.0


@dataclass(frozen=True, slots=True)
class ClientLimits:
    """Bounds on what an upstream may send. Waiting limits belong to the upstream's own configuration."""

    head_bytes: int = 128 * KIB
    header_count: int = 400
    write_buffer_bytes: int = 64 * KIB
