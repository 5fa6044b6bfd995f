"""Batches for a server that has none: OpenAI's own client, Weir's own batch API, llama.cpp's own server.

Weir is restarted in the middle, in peace and by force.
"""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.real.processes import run_python
from tests.real.registry import KEY
from tests.real.served import Setup, origin_of
from tests.support.serving import BatchCaller
from tests.support.weir_process import WeirProcess, weir_process

pytestmark = pytest.mark.xdist_group("llama")

LINES, REFUSED = 500, 3
SECRET = "a secret that is long enough for sealing"
POLICY = """
version: 1
upstreams: {local: {base_url: "URL/v1", provider: llamacpp}}
defaults: {upstream: local}
"""


def asked(weir: WeirProcess, environment: str, home: Path, *arguments: str) -> dict[str, Any]:
    """Run the client's program; return what it printed."""
    variables = {"OPENAI_BASE_URL": f"{origin_of(weir)}/v1", "OPENAI_API_KEY": KEY}
    told: dict[str, Any] = json.loads(run_python(environment, "working_off.py", arguments, home, variables))
    return told


@pytest.mark.parametrize("end", [signal.SIGTERM, signal.SIGKILL])
def test_a_batch_is_whole_after_a_restart_in_its_middle(
    end: signal.Signals, llama_chat: Setup, home: Path, tmp_path: Path
) -> None:
    options = ("--store", f"sqlite:{tmp_path / 'jobs.db'}", "--drain-timeout", "5s")
    setting: dict[str, Any] = {
        "policies": POLICY.replace("URL", llama_chat.server.url),
        "environment": {"WEIR_SECRET_KEY": SECRET},
    }
    with weir_process(tmp_path, None, *options, **setting) as first:
        begun = asked(first, "openai-3", home, "begin", str(LINES), str(REFUSED))
        caller = BatchCaller(first, ("authorization", f"Bearer {KEY}"))
        midway = caller.until(begun["batch"], completed=LINES // 5, seconds=60)
        first.signal(end)
        first.wait()
    assert midway["status"] == "in_progress"
    assert midway["request_counts"]["completed"] < LINES - REFUSED
    with weir_process(tmp_path, None, *options, **setting) as second:
        told = asked(second, "openai-3", home, "finish", begun["batch"])
    batch = told["batch"]
    assert batch["status"] == "completed"
    assert batch["request_counts"] == {"total": LINES, "completed": LINES - REFUSED, "failed": REFUSED}
    assert batch["metadata"] == {"test": "working off"}
    ids = [line["custom_id"] for line in told["output"] + told["errors"]]
    assert sorted(ids) == sorted(f"line-{number}" for number in range(LINES))
    answers = [line["response"]["body"] for line in told["output"]]
    assert all(answer["choices"][0]["message"]["role"] == "assistant" for answer in answers)
    assert batch["usage"]["output_tokens"] == sum(each["usage"]["completion_tokens"] for each in answers) > 0
    assert {line["response"]["status_code"] for line in told["errors"]} == {400}
    assert told["listed"] == [begun["batch"]]
    assert told["purposes"] == ["batch", "batch_output", "batch_output"]
    assert (told["deleted"], told["cancelled late"], told["deleted file"]) == (True, 409, 404)
