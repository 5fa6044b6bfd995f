"""Other people's clients see the same with Weir in the path and without, pointed at it by one variable."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.real.comparison import as_sent, differences, settled
from tests.real.registry import CLIENTS, Client
from tests.real.served import Setup, origin_of


def _named(clients: list[Client]) -> list[object]:
    return [pytest.param(client, id=client.name) for client in clients]


@pytest.mark.parametrize("client", _named([one for one in CLIENTS if "simulator" in one.servers]))
def test_sees_the_same_of_the_simulated_provider(client: Client, simulated: Setup, home: Path) -> None:
    with client.started("simulator", home) as run:

        def seen_at(origin: str) -> Any:
            # Its ids count what has come before, and a prompt that holds one makes another answer.
            simulated.server.ask("POST", "/sim/reset")
            simulated.recorder.take()
            return run(origin)

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
    with client.started("llama.cpp", home) as run:
        direct = run(llama_chat.server.url)
        through = run(origin_of(llama_chat.everything))
    assert list(differences(settled(direct), settled(through))) == []


def test_all_that_weir_adds_is_really_there(simulated: Setup) -> None:
    """Or the comparisons above would compare nothing with nothing."""
    body = b'{"model":"gpt-4o-mini","messages":[{"role":"user","content":"Hello"}],"stream":true}'
    slow = (("x-sim-tokens", "4"), ("x-sim-token-ms", "120"))
    simulated.recorder.take()
    answer = simulated.everything.client().request("POST", "/v1/chat/completions", body, slow)
    (sent,) = simulated.recorder.take()
    assert b'"include_usage":true' in sent.body
    assert b'"usage":{' not in answer.body
    assert b": keep-alive" in answer.body
    assert b": weir ttft_ms=" in answer.body


def test_a_difference_is_seen() -> None:
    direct = {
        "said": [{"id": "chatcmpl-0000000a", "text": "left"}, {"id": "chatcmpl-0000000a", "created": 1}]
    }
    same = {"said": [{"id": "chatcmpl-0000000b", "text": "left"}, {"id": "chatcmpl-0000000b", "created": 2}]}
    other = {
        "said": [{"id": "chatcmpl-0000000b", "text": "right"}, {"id": "chatcmpl-0000000c", "created": 2}]
    }
    assert list(differences(settled(direct), settled(same))) == []
    assert len(list(differences(settled(direct), settled(other)))) == 2
    assert len(list(differences(settled(direct), settled({"said": []})))) == 1
