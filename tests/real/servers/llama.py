"""Serves the tiny model with llama.cpp's own HTTP server, which the xllamacpp wheel carries.

    python llama.py FOLDER [--embedding] [--slots N] [--key KEY] [--cache]

Makes the model in FOLDER, prints `listening on http://HOST:PORT`, and serves until a signal. Runs in the
environment of the servers, not in Weir's.
"""

from __future__ import annotations

import argparse
import os
import signal
import socket
from pathlib import Path

import xllamacpp
from tiny_model import CONTEXT, make


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


def _parameters(options: argparse.Namespace, model: Path) -> xllamacpp.CommonParams:
    chosen = xllamacpp.CommonParams()
    chosen.model.path = str(model)
    chosen.model_alias = {"tiny"}
    chosen.hostnames = ["127.0.0.1"]
    chosen.port = _free_port()
    chosen.n_ctx = CONTEXT
    chosen.n_parallel = options.slots
    # One thread, or sums come out in another order and with them, now and then, another word.
    chosen.cpuparams.n_threads = 1
    chosen.cpuparams_batch.n_threads = 1
    chosen.n_threads_http = 8
    chosen.n_gpu_layers = 0
    # Unless asked for: answers shall not depend on what was asked before.
    chosen.cache_prompt = options.cache
    chosen.cache_ram_mib = 0
    chosen.warmup = False
    chosen.use_jinja = True
    chosen.fit_params = False
    chosen.endpoint_metrics = True
    if options.embedding:
        chosen.embedding = True
        chosen.pooling_type = xllamacpp.llama_pooling_type.LLAMA_POOLING_TYPE_MEAN
    if options.key:
        chosen.api_keys = [options.key]
    return chosen


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--embedding", action="store_true")
    parser.add_argument("--slots", type=int, default=4)
    parser.add_argument("--key")
    parser.add_argument("--cache", action="store_true", help="keep prompts that were read")
    options = parser.parse_args()
    model = options.folder / f"tiny-{os.getpid()}.gguf"
    make(model)
    server = xllamacpp.Server(_parameters(options, model))
    print(f"listening on {server.listening_address}", flush=True)
    signal.sigwait({signal.SIGTERM, signal.SIGINT})
    # Its threads may be in the middle of an answer: there is nothing to wind up.
    os._exit(0)


if __name__ == "__main__":
    main()
