"""Fields that are not compared: whether they are sound, whether they differ, which refusals may mean them."""

from __future__ import annotations

import pytest

from proxy.core.document import Document
from proxy.lanes.coalesce.share_fields import differ, is_well_formed, may_be_about_a_field


def document(fields: str) -> Document:
    return Document.parse(b"{%b}" % fields.encode())


@pytest.mark.parametrize(
    "fields",
    [
        "",
        '"user":"u","safety_identifier":"s","prompt_cache_key":null,"store":false',
        '"metadata":{"a":"1"},"store":true',
        '"metadata":null,"stream":null,"stream_options":null',
        '"stream":true,"stream_options":{}',
        '"stream":true,"stream_options":{"include_usage":true,"include_obfuscation":null,"x":1}',
    ],
)
def test_what_is_documented_is_well_formed(fields: str) -> None:
    assert is_well_formed(document(fields))


@pytest.mark.parametrize(
    "fields",
    [
        '"user":123',
        '"safety_identifier":["s"]',
        '"prompt_cache_key":{}',
        '"metadata":"m"',
        '"metadata":[]',
        '"store":"true"',
        '"stream":"true"',
        '"stream":1',
        '"stream_options":{"include_usage":true}',
        '"stream":false,"stream_options":{}',
        '"stream":true,"stream_options":[]',
        '"stream":true,"stream_options":{"include_usage":1}',
        '"stream":true,"stream_options":{"include_obfuscation":"no"}',
    ],
)
def test_what_is_not_is_not(fields: str) -> None:
    assert not is_well_formed(document(fields))


def test_requests_differ_in_who_asks_and_in_how() -> None:
    one = document('"user":"a","stream":true')
    assert not differ(one, one)
    assert not differ(one, document('"stream":true,"user":"a"'))
    assert differ(one, document('"user":"b","stream":true'))
    assert differ(one, document('"user":"a"'))
    assert differ(one, document('"user":"a","stream":true,"metadata":{}'))


def test_a_refusal_may_be_about_a_field_unless_it_says_otherwise() -> None:
    told = [status for status in range(200, 600) if may_be_about_a_field(status)]
    assert {400, 403, 409, 413, 422, 500} <= set(told)
    assert not {200, 307, 401, 402, 404, 408, 429, 501, 502, 503, 504, 529}.intersection(told)
