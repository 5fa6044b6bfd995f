"""JSON mode, whose API refuses conversations in which no message says "json".

Owns what counts as saying so: the text of messages; of Responses items not the results of tools. Names of
tools, ids and arguments do not. Whoever takes text away asks here what has to stay for that word.

Source: the refusals of OpenAI's chat and Responses APIs for `json_object`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from proxy.core.document import Document
from proxy.dialects.conversation import Conversation
from proxy.dialects.text_parts import text_parts

_WORD = "json"
_RAW_WORD = b"json"
_ESCAPE = b"\\u00"


def asks_for_json(document: Document) -> bool:
    """Tell whether a request asks for any JSON, without a schema."""
    paths = (("response_format", "type"), ("text", "format", "type"))
    return any(document.get_path(path) == b'"json_object"' for path in paths)


def without_last_loss(conversation: Conversation, shortened: Mapping[int, bytes]) -> Mapping[int, bytes]:
    """Return edits of elements, less the one that would take the last mention out of the conversation."""
    if _is_said_by_system(conversation) or _last_mention(conversation, shortened) is not None:
        return shortened
    needed = _last_mention(conversation, {})
    return {index: raw for index, raw in shortened.items() if index != needed}


def with_mention(
    conversation: Conversation, edits: Mapping[int, bytes], dropped: frozenset[int]
) -> frozenset[int]:
    """Return groups to drop, less the newest exchange that says the word if no element that stays does."""
    groups = conversation.groups
    saying = [
        number
        for number, group in enumerate(groups)
        if any(_mentions(conversation, edits, index) for index in range(group.start, group.end))
    ]
    if _is_said_by_system(conversation) or not dropped.issuperset(saying) or not saying:
        return dropped
    newest = saying[-1]
    turn = next((turn.groups for turn in conversation.turns if newest in turn.groups), (newest,))
    return dropped.difference(turn)


def _is_said_by_system(conversation: Conversation) -> bool:
    return any(_RAW_WORD in raw.lower() for raw in conversation.fixed)


def _last_mention(conversation: Conversation, edits: Mapping[int, bytes]) -> int | None:
    indices: Sequence[int] = range(len(conversation.raws) - 1, -1, -1)
    return next((index for index in indices if _mentions(conversation, edits, index)), None)


def _mentions(conversation: Conversation, edits: Mapping[int, bytes], index: int) -> bool:
    raw = edits.get(index, conversation.raws[index])
    if _RAW_WORD not in raw.lower() and _ESCAPE not in raw:
        return False
    counts_results = conversation.key == "messages"
    return any(
        _WORD in part.text(raw).lower() for part in text_parts(raw) if counts_results or part.result is None
    )
