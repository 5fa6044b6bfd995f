"""The simulated provider: a small separate server that behaves like an OpenAI- or Anthropic-style API.

It owns its own reading of those APIs and shares none with Weir's dialects, so that a mistake in one does not
hide the same mistake in the other. It refuses to stand for any real provider: what it says about speed, price
or quality is what its scenario says.
"""
