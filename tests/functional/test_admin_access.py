"""The admin API over HTTP: foreign pages are turned away, and misspelled filters are not taken for none."""

from __future__ import annotations

import json
from pathlib import Path
from urllib.parse import urlsplit

from tests.support.deferring import deferring
from tests.support.raw_client import RawClient


def test_pages_and_misspelled_filters_are_refused(tmp_path: Path) -> None:
    with deferring(tmp_path) as (proxy, _):
        where = urlsplit(proxy.admin_url)
        with RawClient((where.hostname or "", where.port or 0)) as client:
            origin = [("Origin", "https://evil.example")]
            client.send_request("POST", "/jobs/x/cancel", b"", origin, host=where.netloc)
            evil = client.read_answer("POST")
            client.send_request("GET", "/jobs", host="evil.example")
            rebound = client.read_answer("GET")
        misspelled = proxy.admin("/jobs?stat=failed")
        on_one = proxy.admin("/jobs/abc?state=failed")
        fine = proxy.admin("/jobs?state=failed")
    assert (evil.status, json.loads(evil.body)["error"]["code"]) == (403, "admin_access_refused")
    assert rebound.status == 403
    assert misspelled[0] == on_one[0] == 400
    assert b"stat" in misspelled[1]
    assert fine[0] == 200
