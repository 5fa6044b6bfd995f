"""Other names by which servers take an output cap, and which values of a cap mean that there is none.

Owns those rules as data, by the provider of an upstream; a limit must see them all. Sources: the code of
llama.cpp's server (`n_predict` is read before `max_tokens`, and -1 is no end), Ollama (`num_predict`, of
which 0 and less are no end), SGLang and vLLM (a 0 counts as absent). OpenAI, Azure and Anthropic refuse what
is below 1.
"""

from __future__ import annotations

from proxy.core.document import Path

_LLAMACPP: tuple[Path, ...] = (("n_predict",),)
# Nobody knows what stands behind a generic upstream: every name that some server reads.
_ANY: tuple[Path, ...] = (
    *_LLAMACPP,
    ("num_predict",),
    ("options", "num_predict"),
    ("max_new_tokens",),
)
_BY_PROVIDER = {"llamacpp": _LLAMACPP, "generic": _ANY}

ALIAS_FIELDS = frozenset(str(path[0]) for path in _ANY)
"""The top-level fields that any of the aliases stands in."""

_LEAST_OF_ALIASES = {"n_predict": 0}
_LEAST_MEANT = {"llamacpp": 0, "vllm": 1}
"""llama.cpp generates nothing for 0, which is a cap."""


def cap_aliases(provider: str) -> tuple[Path, ...]:
    """Return where else a provider's server takes an output cap, beside the API's own fields."""
    return _BY_PROVIDER.get(provider, ())


def least_meant(provider: str, path: Path) -> int | None:
    """Return the number below which a cap is known to mean no end; `None`: the upstream is to judge it.

    What an API itself has a name for, an unknown upstream may well refuse; the other names mean what they do
    at the servers that read them.
    """
    if path in _ANY:
        return _LEAST_OF_ALIASES.get(str(path[-1]), 1)
    return _LEAST_MEANT.get(provider)
