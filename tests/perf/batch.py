"""`make bench-batch`: what callers feel of a batch that Weir works off beside them, and how fast it goes.

    python -m tests.perf.batch [--json] [--seconds 12] [--rounds 6] [--rate 3] [--llama] [--give-way]

The same callers come at the same (random) times again and again: alone, with a batch running, and alone once
more, in short turns, so that the machine's moods hit all alike; what the two turns alone differ by is noise.
Figures are ratios within one run; absolute times belong to the machine. The simulated provider works on four
requests at once and lets others wait; `--llama` measures llama.cpp's own server with a tiny model instead
(`make real` installs it). `--give-way` has lines cut off when a caller's request comes.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path

from tests.perf.lanes_chats import Figure
from tests.real.processes import llama, server
from tests.support.serving import CHAT, BatchCaller, chat_line
from tests.support.weir_process import WeirProcess, weir_process

MOST_GROWTH = 1.10
_UNTIL_IDLE_SECONDS = 15.0
"""Before lines make use of the silence of callers."""
POLICY = """
version: 1
upstreams: {model: {base_url: URL/v1, provider: llamacpp, batch_api: {give_way: GIVE_WAY}}}
defaults: {upstream: model}
routes:
  - {name: chats, match: {path: /v1/chat/completions}}
"""
SCENARIO = """
timing: {base_ms: 120, prefill_ms_per_token: 0.1, decode_ms_per_token: 10, output_tokens: 30}
slots: {concurrent: 4}
cache: {enabled: false}
"""
LINES = 4_000
WORDS = ("river", "stone", "moss", "weir", "dam", "rain", "field", "mill", "fish", "reed")


@dataclass
class Felt:
    """What callers felt: seconds until the first byte and until the end."""

    first: list[float] = field(default_factory=list)
    whole: list[float] = field(default_factory=list)


@contextmanager
def upstream(home: Path, is_llama: bool) -> Iterator[str]:
    """Run what answers; its origin."""
    if is_llama:
        with llama(home, "--slots", "4") as running:
            yield running.url
        return
    scenario = home / "scenario.yaml"
    scenario.write_text(SCENARIO, encoding="utf-8")
    command = [sys.executable, "-m", "proxy.cli.main", "simulate", "--listen", "127.0.0.1:0"]
    with server([*command, "--scenario", scenario], home) as running:
        yield running.url


def callers(weir: WeirProcess, seconds: float, rate: float, seed: int) -> Felt:
    """Ask at random times, whether or not earlier questions are answered; every second time for a stream."""
    felt, draw = Felt(), random.Random(seed)
    threads, due = [], 0.0
    began = time.perf_counter()
    while (due := due + draw.expovariate(rate)) < seconds:
        text = " ".join(draw.choices(WORDS, k=draw.randrange(5, 60)))
        asked = {"model": "tiny", "messages": [{"role": "user", "content": text}], "stream": True}
        body = json.dumps(asked | {"max_tokens": 30}).encode()
        time.sleep(max(0.0, began + due - time.perf_counter()))
        threads.append(threading.Thread(target=ask, args=(weir, body, felt), daemon=True))
        threads[-1].start()
    for thread in threads:
        thread.join(60)
    return felt


def ask(weir: WeirProcess, body: bytes, felt: Felt) -> None:
    """Ask once, on a connection of its own."""
    client = weir.client(timeout_seconds=60)
    began = time.perf_counter()
    client.send_request("POST", CHAT, body, [("content-type", "application/json")])
    client.buffer = client.receive()
    first = time.perf_counter() - began
    answer = client.read_answer("POST")
    assert answer.status == 200, answer
    felt.first.append(first)
    felt.whole.append(time.perf_counter() - began)
    client.close()


@contextmanager
def batch(weir: WeirProcess) -> Iterator[BatchCaller]:
    """Have a long batch worked off until the block ends."""
    caller = BatchCaller(weir)
    batch_id = caller.batch(
        chat_line(f"line-{n}", f"line {n} of a batch", max_tokens=30) for n in range(LINES)
    )
    deadline = time.monotonic() + 60
    while caller.look(batch_id)["status"] == "validating":
        assert time.monotonic() < deadline, "the batch does not begin"
        time.sleep(0.02)
    try:
        yield caller
    finally:
        caller.json("POST", f"/v1/batches/{batch_id}/cancel")
        caller.ended(batch_id, seconds=60)


def counted(weir: WeirProcess, *words: str) -> float:
    """Return what a counter of Weir's says: of the first line that holds all the words."""
    for line in weir.admin("/metrics").body.decode().splitlines():
        if all(word in line for word in words) and not line.startswith("#"):
            return float(line.rsplit(" ", 1)[1])
    return 0.0


def lines_done(weir: WeirProcess) -> float:
    """Return how many lines are completed since Weir started."""
    return counted(weir, "weir_served_lines_total", 'outcome="completed"')


def measure(options: argparse.Namespace, weir: WeirProcess) -> Iterator[Figure]:
    """Measure in turns."""
    seconds, rate = options.seconds, options.rate
    callers(weir, 10.0, rate, seed=0)
    alone, beside, again = Felt(), Felt(), Felt()
    done = spent = 0.0
    for turn in range(options.rounds):
        _add(alone, callers(weir, seconds, rate, seed=turn + 1))
        with batch(weir):
            before, began = lines_done(weir), time.perf_counter()
            _add(beside, callers(weir, seconds, rate, seed=turn + 1))
            done += lines_done(weir) - before
            spent += time.perf_counter() - began
        _add(again, callers(weir, seconds, rate, seed=turn + 1))
    with batch(weir):
        time.sleep(_UNTIL_IDLE_SECONDS)
        before, began = lines_done(weir), time.perf_counter()
        time.sleep(5.0)
        idle = (lines_done(weir) - before) / (time.perf_counter() - began)
    yield from _felt(alone, beside, again)
    yield Figure("lines of the batch a second, beside callers", f"{done / spent:.1f}", "> 0", done > 0)
    yield Figure("lines of the batch a second, without callers", f"{idle:.1f}", "(shown)", True)
    for met in ("unproven", "trusted"):
        count = counted(weir, "weir_served_interactive_total", f'met="{met}"')
        yield Figure(f"callers' requests that met lines: {met}", f"{count:.0f}", "(shown)", True)


def _felt(alone: Felt, beside: Felt, again: Felt) -> Iterator[Figure]:
    for share in (50, 95):
        for name in ("first", "whole"):
            one, two, three = (_percentile(getattr(felt, name), share) for felt in (alone, beside, again))
            growth = two / one
            what = f"{name}, p{share}: beside a batch, against alone ({len(alone.first)} answers each)"
            value = f"{growth:.3f} ({one * 1000:.1f} -> {two * 1000:.1f} ms)"
            bound = f"< {MOST_GROWTH}" if share == 95 else "(shown)"
            yield Figure(what, value, bound, share != 95 or growth < MOST_GROWTH)
            yield Figure(
                f"{name}, p{share}: alone again, against alone", f"{three / one:.3f}", "(shown)", True
            )


def _add(all_of_them: Felt, more: Felt) -> None:
    all_of_them.first += more.first
    all_of_them.whole += more.whole


def _percentile(values: list[float], share: int) -> float:
    return statistics.quantiles(values, n=100, method="inclusive")[share - 1]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="make bench-batch")
    parser.add_argument("--json", action="store_true", help="for machines")
    parser.add_argument("--llama", action="store_true", help="llama.cpp instead of the simulated provider")
    parser.add_argument("--give-way", action="store_true", help="cut lines off for callers")
    parser.add_argument("--seconds", type=float, default=12.0, help="of one turn")
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--rate", type=float, default=3.0, help="questions a second")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        store = f"sqlite:{home / 'jobs.db'}"
        given = str(options.give_way).lower()
        with (
            upstream(home, options.llama) as url,
            weir_process(
                home,
                None,
                "--store",
                store,
                policies=POLICY.replace("URL", url).replace("GIVE_WAY", given),
            ) as weir,
        ):
            for figure in measure(options, weir):
                if options.json:
                    print(json.dumps(asdict(figure)), flush=True)
                else:
                    mark = "" if figure.is_met else "  NOT MET"
                    print(f"{figure.what:<84}{figure.value:>28}  {figure.bound}{mark}", flush=True)


if __name__ == "__main__":
    main()
