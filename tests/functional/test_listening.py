"""Where Weir listens: IPv6, unix sockets, and what stands in their place."""

from __future__ import annotations

import socket
import stat
from pathlib import Path

import pytest

from tests.support.chat import ANSWER
from tests.support.raw_upstream import Call, RawUpstream
from tests.support.weir import weir


def answer(call: Call) -> None:
    call.json(ANSWER)


def has_ipv6() -> bool:
    try:
        with socket.create_server(("::1", 0), family=socket.AF_INET6):
            return True
    except OSError:
        return False


def test_ipv6_addresses_are_listened_on_and_called(tmp_path: Path) -> None:
    if not has_ipv6():
        # Nothing to see on a machine without IPv6; that asking for it is a clear error is.
        with pytest.raises(OSError), weir(tmp_path, "http://127.0.0.1:1/v1", listen="[::1]:0"):
            pass
        return
    with (
        RawUpstream(answer) as upstream,
        weir(tmp_path, upstream.url, listen="[::1]:0", admin="[::1]:0") as proxy,
    ):
        assert proxy.url.startswith("http://[::1]:")
        assert proxy.admin_url.startswith("http://[::1]:")
        assert proxy.client().request("GET", "/v1/models").status == 200
        assert proxy.admin("/readyz")[0] == 200


def test_a_unix_socket_is_listened_on_and_removed(tmp_path: Path) -> None:
    path = tmp_path / "s"
    with RawUpstream(answer) as upstream:
        for _ in range(2):
            with weir(tmp_path, upstream.url, listen=f"unix:{path}") as proxy:
                assert stat.S_ISSOCK(path.stat().st_mode)
                assert proxy.client().request("GET", "/v1/models").status == 200
                assert proxy.log(1)[0]["status"] == 200
            assert not path.exists()


def test_a_socket_that_nobody_listens_on_is_replaced_and_any_other_file_is_not(tmp_path: Path) -> None:
    stale, used, other = tmp_path / "stale", tmp_path / "used", tmp_path / "other"
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(stale))
    other.write_text("precious")
    with RawUpstream(answer) as upstream, socket.socket(socket.AF_UNIX) as alive:
        alive.bind(str(used))
        alive.listen()
        with weir(tmp_path, upstream.url, listen=f"unix:{stale}") as proxy:
            assert proxy.client().request("GET", "/v1/models").status == 200
        for path, problem in ((used, "in use by another process"), (other, "is not a socket")):
            with pytest.raises(OSError, match=problem), weir(tmp_path, upstream.url, listen=f"unix:{path}"):
                pass
    assert other.read_text() == "precious"
