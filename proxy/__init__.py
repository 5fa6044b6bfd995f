"""Weir: a transparent optimizing proxy for OpenAI-compatible APIs."""

__version__ = "0.1.0"
