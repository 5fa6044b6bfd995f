"""Where a request holds texts that may have passages in them, in the order in which the model reads them.

Owns which texts are looked at. What a model wrote is not among them: nobody may edit that.
"""

from __future__ import annotations

from proxy.core.document import Document
from proxy.dialects.conversation import Conversation, Role, conversation_fields
from proxy.dialects.dialect import Dialect
from proxy.dialects.text_holders import Holder

PLAIN_FIELDS = {"completions": "prompt", "responses": "input"}
"""The fields that may hold a prompt as plain text, by dialect."""

_READ_BY_ALL = frozenset({Role.SYSTEM, Role.USER, Role.TOOL})


def holders_of(
    conversation: Conversation, document: Document, dialect: Dialect, *, is_everything: bool
) -> list[Holder]:
    """Return what to look at in a conversation: all that is read, or what the person wrote."""
    if not is_everything:
        return [
            Holder(conversation.key, index, conversation.raws[index], own_words=True)
            for index, element in enumerate(conversation.elements)
            if element.speaks
        ]
    fields = ((name, document.get(name)) for name in conversation_fields(dialect)[1:])
    found = [Holder(name, None, raw, is_value=True) for name, raw in fields if raw is not None]
    return found + [
        Holder(conversation.key, index, conversation.raws[index])
        for index, element in enumerate(conversation.elements)
        if element.role in _READ_BY_ALL
    ]


def plain_holders(document: Document, field: str) -> list[Holder] | None:
    """Return the prompts of a request that has no messages; `None` where there is no text."""
    raw = document.get(field)
    if raw is None:
        return None
    if raw.startswith(b'"'):
        return [Holder(field, None, raw, is_value=True)]
    prompts = document.elements(field) or ()
    texts = [(index, prompt) for index, prompt in enumerate(prompts) if prompt.startswith(b'"')]
    return [Holder(field, index, prompt, is_value=True) for index, prompt in texts] or None
