"""What an answer looks like on the wire when it goes at another pace or not as it should."""

from __future__ import annotations

import time

import pytest

from tests.unit.sim.running import Sim

STREAM = {"stream": True}


def test_head_first_content_and_tokens_come_at_their_times(sim: Sim) -> None:
    pace = {"x_sim_head_ms": "20", "x_sim_first_byte_ms": "320", "x_sim_token_ms": "30", "x_sim_tokens": "3"}
    started = time.monotonic()
    reply = sim.chat(STREAM, **pace)
    head, role, *rest = (at - started for at in reply.read_at)
    assert 0.019 <= head <= role
    assert b'"role"' in reply.blocks()[0]
    assert rest[0] - role >= 0.1
    assert rest[0] >= 0.319
    assert rest[-1] >= 0.379


def test_without_head_ms_the_head_comes_with_the_first_token(sim: Sim) -> None:
    started = time.monotonic()
    reply = sim.chat(STREAM, x_sim_first_byte_ms="80")
    assert reply.read_at[0] - started >= 0.079


def test_a_buffered_answer_takes_as_long_as_its_last_token(sim: Sim) -> None:
    started = time.monotonic()
    assert sim.chat(x_sim_first_byte_ms="30", x_sim_token_ms="20", x_sim_tokens="4").status == 200
    assert time.monotonic() - started >= 0.089


def test_a_buffered_answer_may_send_its_head_early(sim: Sim) -> None:
    started = time.monotonic()
    reply = sim.chat(x_sim_head_ms="10", x_sim_first_byte_ms="310")
    assert reply.read_at[-1] - reply.read_at[0] >= 0.1
    assert reply.json()["object"] == "chat.completion"
    assert reply.read_at[-1] - started >= 0.309


def test_cuts_a_stream_after_so_many_events(sim: Sim) -> None:
    reply = sim.chat(STREAM, x_sim_cut_after="3")
    assert (reply.status, reply.is_cut, len(reply.blocks())) == (200, True, 3)


def test_cuts_before_the_head(sim: Sim) -> None:
    for body in (STREAM, {}):
        with pytest.raises(ConnectionError):
            sim.chat(body, x_sim_cut_after="0")
    assert sim.stats()["faults"] == {"cut_after": 2}


def test_cuts_a_buffered_answer_in_the_middle(sim: Sim) -> None:
    whole = sim.chat().body
    cut = sim.chat(x_sim_cut_after="1")
    assert (cut.status, cut.is_cut) == (200, True)
    assert abs(len(cut.body) - len(whole) // 2) <= 1


def test_leaves_out_the_end_of_a_stream(sim: Sim) -> None:
    chat = sim.chat(STREAM, x_sim_end_without_done="1")
    assert (chat.is_cut, b"[DONE]" in chat.body) == (False, False)
    assert chat.events()[-1]["choices"][0]["finish_reason"] == "stop"
    assert sim.messages(STREAM, x_sim_end_without_done="1").names()[-1] == "message_delta"
    responses = sim.post("/v1/responses", {"model": "m", "input": "Hi", **STREAM}, x_sim_end_without_done="1")
    assert responses.names()[-1] == "response.output_item.done"


def test_sends_each_api_s_own_error_event(sim: Sim) -> None:
    chat = sim.chat(STREAM, x_sim_error_event_after="2")
    assert (chat.status, len(chat.blocks()), chat.is_cut) == (200, 3, False)
    assert chat.events()[-1]["error"]["type"] == "server_error"
    messages = sim.messages(STREAM, x_sim_error_event_after="2")
    assert messages.names()[-1] == "error"
    assert messages.events()[-1]["error"]["type"] == "api_error"
    responses = sim.post(
        "/v1/responses", {"model": "m", "input": "Hi", **STREAM}, x_sim_error_event_after="2"
    )
    assert responses.names()[-1] == "error"
    assert (responses.events()[-1]["code"], responses.events()[-1]["sequence_number"]) == ("server_error", 2)


def test_sends_comments_between_events(sim: Sim) -> None:
    blocks = sim.chat(STREAM, x_sim_comment_every="2", x_sim_tokens="3").blocks()
    assert [block.startswith(b":") for block in blocks] == [False, False, True] * 3


def test_a_stalled_stream_stays_open_and_silent(sim: Sim) -> None:
    connection = sim.open()
    try:
        connection.request(
            "POST",
            "/v1/chat/completions",
            '{"model": "m", "stream": true, "messages": [{"role": "user", "content": "Hi"}]}',
            {"x-sim-stall-after": "2"},
        )
        response = connection.getresponse()
        received = b""
        while received.count(b"\n\n") < 2:
            received += response.read1(65536)
        assert connection.sock is not None
        connection.sock.settimeout(0.1)
        with pytest.raises(TimeoutError):
            response.read1(1)
        response.close()
    finally:
        connection.close()
    stats = sim.stats_when(lambda found: found["disconnects"]["midway"] == 1)
    assert stats["disconnects"] == {"before_first_byte": 0, "midway": 1}
    assert stats["faults"] == {"stall_after": 1}
