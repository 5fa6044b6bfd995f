"""Owns the policy that `weir init` writes: one working route and the rest as comments to take up."""

from __future__ import annotations

STARTER_POLICY = """\
# A Weir policy. Check it with `weir check FILE`, see what it does with `weir explain`.
# Every key is described in docs/policies.md.
version: 1

# Where requests go. Without this section, `serve` uses WEIR_UPSTREAM, or OpenAI with OPENAI_API_KEY.
# upstreams:
#   openai:
#     base_url: https://api.openai.com/v1
#     api_key: ${OPENAI_API_KEY}     # leave it out and the callers' own credentials pass through
#     provider: openai

# Settings of every route that does not have its own.
defaults:
  headers: full                      # off | minimal | full: how much Weir says in response headers
  on_error: pass                     # pass | reject: what a failing step does to its request

# The first route that matches wins. Whatever matches none passes untouched.
routes:
  - name: chat
    match:
      path: /v1/chat/completions
      # model: ["gpt-4o*", "gpt-5*"] # patterns know only *, which stands for any text; quote them
      # headers: {x-team: support}
    steps:
      # In tokens: `default` bounds answers whose caller set no cap, `max` lowers caps above it.
      - cap_output: {default: 1000, max: 4000}
      # - add_stop: ["\\n\\nUser:"]     # stop sequences on top of the callers' own
    urgency: {default: interactive}
"""
"""Text of a policy that `check` accepts without findings."""
