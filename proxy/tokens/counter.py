"""The counter that Weir runs with: real vocabularies, guarded text, cached messages.

Owns the joining of model profiles, encoders, measuring and the cache, and the promise that nothing here
raises: what fails is estimated from its length, called inexact and added to `fallbacks`. Refuses to load
vocabularies (`vocabulary`) and to leave its thread (`offload`).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable

import msgspec

from proxy.tokens.bounded import byte_estimate, count_bounded, utf8_length
from proxy.tokens.bounds import upper_bound_bytes
from proxy.tokens.cache import CacheKey, CountCache
from proxy.tokens.messages import measure_message
from proxy.tokens.models import ModelProfile, profile_for
from proxy.tokens.port import Count, Encoders, EncodingName
from proxy.tokens.tools import measure_tools

__all__ = ["Count", "TokenCounter", "decode_json", "upper_bound_bytes"]

# Model names come from callers: neither their number nor their length may grow the memory.
_MAX_PROFILES = 1_024
_MAX_MODEL_NAME_CHARACTERS = 200
# Rendering is Python, sampling is not: longer tool lists are counted as the JSON that they are.
_MAX_RENDERED_TOOLS_BYTES = 256 * 1024


class TokenCounter:
    """Counts with these encoders; see `port.Counter` for the contract. Share one per process.

    A message costs its hash (about 1 ms per MB) when it was counted before for a model that counts alike.
    """

    upper_bound_bytes = staticmethod(upper_bound_bytes)

    def __init__(self, encoders: Encoders, cache_entries: int = 32_768) -> None:
        self._encoders = encoders
        self._cache = CountCache(cache_entries)
        self._profiles: dict[str, ModelProfile] = {}
        self.fallbacks = 0
        """How many values could not be counted as they should and were estimated from their length."""

    def prepare(self) -> None:
        """Ask for every encoder."""
        for name in EncodingName:
            self._encoders.get(name)

    def count_text(self, text: str, model: str) -> Count:
        """Count plain text, without any message framing."""
        return self._text(text, self._profile(model))

    def count_message(self, raw: bytes, model: str) -> Count:
        """Count one chat, Responses or Anthropic message given as the bytes of its JSON value."""
        profile = self._profile(model)
        key = _message_key(raw, profile)
        count = self._cache.get(key)
        if count is None:
            count = self._measured(raw, lambda value: self._message(value, profile))
            self._cache.put(key, count)
        return count

    def count_tools(self, raw: bytes, model: str) -> Count:
        """Count the `tools` (or legacy `functions`) array given as the bytes of its JSON value."""
        profile = self._profile(model)
        key = (f"tools {profile.key}", hashlib.sha256(raw).digest())
        count = self._cache.get(key)
        if count is None:
            if len(raw) > _MAX_RENDERED_TOOLS_BYTES:
                count = self._text(raw.decode("utf-8", "replace"), profile)
                count = Count(count.tokens, False)
            else:
                count = self._measured(raw, lambda value: self._tools(value, profile))
            self._cache.put(key, count)
        return count

    def uncached_bytes(self, raws: Iterable[bytes], model: str) -> int:
        """Return how many bytes of these messages would have to be counted anew."""
        profile = self._profile(model)
        return sum(len(raw) for raw in raws if _message_key(raw, profile) not in self._cache)

    def _profile(self, model: str) -> ModelProfile:
        profile = self._profiles.get(model)
        if profile is None:
            profile = profile_for(model[:_MAX_MODEL_NAME_CHARACTERS])
            if len(self._profiles) >= _MAX_PROFILES:
                self._profiles.clear()
            if len(model) <= _MAX_MODEL_NAME_CHARACTERS:
                self._profiles[model] = profile
        return profile

    def _message(self, value: object, profile: ModelProfile) -> Count:
        return measure_message(value, profile, lambda text: self._text(text, profile))

    def _tools(self, value: object, profile: ModelProfile) -> Count:
        return measure_tools(value, lambda text: self._text(text, profile))

    def _measured(self, raw: bytes, measure: Callable[[object], Count]) -> Count:
        try:
            return measure(decode_json(raw))
        # Fail open (promise P2): no malformed, endlessly nested or simply unforeseen value may fail a
        # request over a figure that can be estimated.
        except Exception:
            self.fallbacks += 1
            return Count(-(-len(raw) // 4), False)

    def _text(self, text: str, profile: ModelProfile) -> Count:
        encoder = self._encoders.get(profile.encoding)
        if encoder is None:
            self.fallbacks += 1
            return Count(byte_estimate(text), False)
        try:
            count = count_bounded(encoder.encode_ordinary, text)
        except Exception:
            self.fallbacks += 1
            return Count(byte_estimate(text), False)
        except BaseException as error:
            # A panic in tiktoken's Rust arrives as pyo3_runtime.PanicException, a BaseException that
            # cannot be imported by name.
            if type(error).__name__ != "PanicException":
                raise
            self.fallbacks += 1
            return Count(byte_estimate(text), False)
        tokens = count.tokens
        if profile.scale_percent != 100:
            tokens = min(-(-tokens * profile.scale_percent // 100), utf8_length(text))
        return Count(tokens, count.exact and profile.exact_text)


def decode_json(raw: bytes) -> object:
    """Decode JSON with the fast parser, or with the lenient one (lone surrogates, NaN) if that refuses."""
    try:
        return msgspec.json.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return json.loads(raw)


def _message_key(raw: bytes, profile: ModelProfile) -> CacheKey:
    return profile.key, hashlib.sha256(raw).digest()
