"""Reading provider JSON into typed structures without ever failing over its shape.

Well-formed input takes one typed decode that skips everything unknown. What that refuses (lone surrogates,
NaN, a field of another type than anyone documents) is decoded loosely and whatever fits is taken from it.
"""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec

from proxy.core.json_values import decode

StructT = TypeVar("StructT", bound=msgspec.Struct)


def read_struct(decoder: msgspec.json.Decoder[StructT], data: bytes) -> StructT | None:
    """Return what `data` says in the decoder's terms, or `None` when it is no JSON object; never raises.

    Of an array the first element is read: some servers wrap errors in one.
    """
    try:
        return decoder.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        pass
    value = decode(data)
    if isinstance(value, list) and value:
        value = value[0]
    return _fitting(decoder.type, value) if isinstance(value, dict) else None


def _fitting(struct: Any, value: dict[str, Any]) -> Any:
    fields: dict[str, Any] = {}
    for field in msgspec.structs.fields(struct):
        if field.encode_name in value:
            try:
                fields[field.name] = msgspec.convert(value[field.encode_name], field.type)
            except (msgspec.ValidationError, RecursionError):
                continue
    return struct(**fields)


def is_filled(value: object) -> bool:
    """Tell whether a content field says anything: non-empty text, list or object."""
    return bool(value) and isinstance(value, (str, list, dict))
