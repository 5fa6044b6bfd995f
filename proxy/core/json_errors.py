"""Why a text is not read as a JSON object. Says it in stable words and judges nothing."""

from __future__ import annotations


class DocumentError(Exception):
    """A body that cannot be read as a JSON object.

    `reason` is one of the stable words `empty`, `not_json`, `not_an_object`, `too_deep`, `too_many_parts`.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class TooManyParts(DocumentError):
    """JSON of more members or elements than anybody here looks at (limits in `json_measure`).

    Raised also where a value inside a readable body is looked at: whoever looks must not take such a value
    for one that says nothing.
    """

    def __init__(self) -> None:
        super().__init__("too_many_parts")
