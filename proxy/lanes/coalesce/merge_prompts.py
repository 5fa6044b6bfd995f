"""What an answer to merged prompts says of each prompt beside the choices, told apart. Pure.

Azure lists what its content filter found, `{"prompt_index": 2, …}` for each prompt: that is its caller's
alone. Any list of an answer whose entries have a `prompt_index` is taken for one of these.
"""

from __future__ import annotations

from collections.abc import Sequence

from proxy.core.document import Document, DocumentError

_INDEX = "prompt_index"
_NOT_LISTS = frozenset({"choices", "usage"})


def prompt_lists(answer: Document, prompts: Sequence[int]) -> dict[str, list[bytes]] | None:
    """Return each such list by name, as one raw list for each member; `None` if an entry is nobody's.

    `prompts` says how many prompts each member has. Each member's own are counted from zero.
    """
    if b'"prompt_index"' not in answer.raw:
        return {}
    owners = [(number, place) for number, count in enumerate(prompts) for place in range(count)]
    found: dict[str, list[bytes]] = {}
    names = answer.keys()
    for name in names:
        raw = answer.get(name) or b""
        if name in _NOT_LISTS or not raw.startswith(b"[") or b'"prompt_index"' not in raw:
            continue
        lists: list[list[bytes]] = [[] for _ in prompts]
        for entry in answer.array(name) or (b"",):
            own = _owned(entry, owners)
            if own is None:
                return None
            lists[own[0]].append(own[1])
        found[name] = [b"[" + b",".join(entries) + b"]" for entries in lists]
    return found


def _owned(entry: bytes, owners: Sequence[tuple[int, int]]) -> tuple[int, bytes] | None:
    """Return whose an entry is, and the entry with the index that it has there."""
    try:
        read = Document.parse(entry)
    except DocumentError:
        return None
    index = read.value(_INDEX)
    if not isinstance(index, int) or isinstance(index, bool) or not 0 <= index < len(owners):
        return None
    number, place = owners[index]
    return number, entry if place == index else read.set(_INDEX, b"%d" % place).to_bytes()
