"""Measure `weir explain` over generated conversations, on one core: python -m tests.perf.explain [POLICY]…

Without a policy it takes one with five steps.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

from proxy.cli.main import main
from tests.support.corpus import corpus

CONVERSATIONS = 1000
POLICY = """
version: 1
upstreams: {cloud: {base_url: "https://api.example/v1", provider: openai}}
routes:
  - name: chat
    match: {path: /v1/chat/completions}
    steps:
      - cap_output: {default: 300, max: 800}
      - add_stop: ["\\n\\nUser:"]
      - shape_output: {terse: "Answer in at most three sentences."}
      - choose_model: [{when: {tokens: {max: 2000}, tools: false}, model: gpt-4o-mini}]
      - set_params: {temperature: {max: 0.7}}
  - name: others
    match: {path: ["/v1/responses", "/v1/messages"]}
    steps: [{cap_output: {max: 800}}]
"""


def run(policies: list[str]) -> int:
    """Write the conversations, pin this process to one core, and explain them."""
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    with tempfile.TemporaryDirectory() as folder:
        requests = Path(folder, "requests.jsonl")
        requests.write_bytes(b"".join(corpus(CONVERSATIONS)))
        if not policies:
            policy = Path(folder, "policy.yaml")
            policy.write_text(POLICY, encoding="utf-8")
            policies = [str(policy)]
        options = [word for policy in policies for word in ("--policies", policy)]
        return main(["explain", *options, str(requests)])


if __name__ == "__main__":
    sys.exit(run(sys.argv[1:]))
