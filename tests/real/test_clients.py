"""Other people's clients see the same with Weir in the path and without, pointed at it by one variable alone."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tests.real.comparison import as_sent, differences, settled
from tests.real.conftest import Setup, origin_of
from tests.real.registry import CLIENTS, Client
from tests.support.weir_process import WeirProcess

pytestmark = pytest.mark.filterwarnings("error")
LOG_SECONDS = 5.0


def _named(clients: list[Client]) -> list[object]:
    return [pytest.param(client, id=client.name) for client in clients]


def _records(weir: WeirProcess, count: int) -> int:
    """Wait until the access log has `count` lines more than nothing; return how many it has."""
    deadline = time.monotonic() + LOG_SECONDS
    while (found := weir.log_file.read_bytes().count(b"\n")) < count and time.monotonic() < deadline:
        time.sleep(0.02)
    return found


@pytest.mark.parametrize("client", _named([one for one in CLIENTS if "simulator" in one.servers]))
def test_sees_the_same_of_the_simulated_provider(client: Client, simulated: Setup, home: Path) -> None:
    simulated.recorder.take()
    direct = client.run("simulator", simulated.recorder.url, home)
    sent_directly = simulated.recorder.take()
    logged = _records(simulated.shipped, 0)
    shipped = client.run("simulator", origin_of(simulated.shipped), home)
    sent_by_weir = simulated.recorder.take()
    everything = client.run("simulator", origin_of(simulated.everything), home)
    simulated.recorder.take()

    assert direct, "the client was asked nothing"
    assert as_sent(sent_by_weir) == as_sent(sent_directly)
    assert _records(simulated.shipped, logged + len(sent_by_weir)) == logged + len(sent_by_weir)
    assert list(differences(settled(direct), settled(shipped))) == []
    assert list(differences(settled(direct), settled(everything))) == []


@pytest.mark.parametrize("client", _named([one for one in CLIENTS if "llama.cpp" in one.servers]))
def test_sees_the_same_of_llama(client: Client, llama_chat: Setup, home: Path) -> None:
    direct = client.run("llama.cpp", llama_chat.recorder.url, home)
    llama_chat.recorder.take()
    through = client.run("llama.cpp", origin_of(llama_chat.everything), home)
    assert llama_chat.recorder.take(), "nothing went through Weir"
    assert list(differences(settled(direct), settled(through))) == []
