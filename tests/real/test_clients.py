"""Other people's clients see the same with Weir in the path and without, pointed at it by one variable."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.real.comparison import as_sent, differences, settled
from tests.real.registry import CLIENTS, Client
from tests.real.served import Setup, origin_of

pytestmark = pytest.mark.filterwarnings("error")


def _named(clients: list[Client]) -> list[object]:
    return [pytest.param(client, id=client.name) for client in clients]


@pytest.mark.parametrize("client", _named([one for one in CLIENTS if "simulator" in one.servers]))
def test_sees_the_same_of_the_simulated_provider(client: Client, simulated: Setup, home: Path) -> None:
    def seen_at(origin: str) -> Any:
        # Its ids count what has come before, and a prompt that holds one makes another answer.
        simulated.server.ask("POST", "/sim/reset")
        simulated.recorder.take()
        return client.run("simulator", origin, home)

    direct = seen_at(simulated.recorder.url)
    sent_directly = simulated.recorder.take()
    shipped = seen_at(origin_of(simulated.shipped))
    sent_by_weir = simulated.recorder.take()
    everything = seen_at(origin_of(simulated.everything))

    assert direct, "the client was asked nothing"
    assert as_sent(sent_by_weir) == as_sent(sent_directly)
    assert list(differences(settled(direct), settled(shipped))) == []
    assert list(differences(settled(direct), settled(everything))) == []


@pytest.mark.parametrize("client", _named([one for one in CLIENTS if "llama.cpp" in one.servers]))
def test_sees_the_same_of_llama(client: Client, llama_chat: Setup, home: Path) -> None:
    direct = client.run("llama.cpp", llama_chat.server.url, home)
    through = client.run("llama.cpp", origin_of(llama_chat.everything), home)
    assert list(differences(settled(direct), settled(through))) == []
