from __future__ import annotations

import logging
import os
from pathlib import Path

import pytest

from proxy.policy.findings import Finding
from proxy.policy.load import load
from proxy.policy.model import Upstream
from proxy.policy.reload import PolicyWatcher

HOME = Upstream(name="home", base_url="http://127.0.0.1:9/v1")


def policy(route: str) -> str:
    return f"version: 1\nroutes: [{{name: {route}, match: {{}}}}]\n"


class Watched:
    """A watcher over a directory and what it reported."""

    def __init__(self, directory: Path, env: dict[str, str] | None = None) -> None:
        self.reports: list[tuple[Finding, ...]] = []
        paths, env = [str(directory)], env or {}
        current = load(paths, env, HOME)
        self.watcher = PolicyWatcher(paths, env, HOME, self.reports.append, current)

    def route_names(self) -> list[str]:
        if self.watcher.changed():
            self.watcher.reload()
        return [route.name for route in self.watcher.current.routes]


def test_takes_over_an_edit_and_then_rests(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(policy("one"))
    watched = Watched(tmp_path)
    assert watched.route_names() == ["one"]
    assert not watched.watcher.changed()
    (tmp_path / "a.yaml").write_text(policy("other"))
    assert watched.route_names() == ["other"]
    assert not watched.watcher.changed()


def test_follows_config_map_symlink_swaps(tmp_path: Path) -> None:
    def publish(version: str, route: str) -> None:
        (tmp_path / version).mkdir()
        (tmp_path / version / "a.yaml").write_text(policy(route))
        (tmp_path / "..data_tmp").symlink_to(version)
        (tmp_path / "..data_tmp").rename(tmp_path / "..data")

    publish("..v0", "r0")
    (tmp_path / "a.yaml").symlink_to("..data/a.yaml")
    watched = Watched(tmp_path)
    assert watched.route_names() == ["r0"]
    for number in (1, 2, 3):
        publish(f"..v{number}", f"r{number}")
        assert watched.route_names() == [f"r{number}"]


def test_sees_a_swap_to_a_file_of_the_same_size_and_time(tmp_path: Path) -> None:
    for version, route in (("..v0", "one"), ("..v1", "two")):
        (tmp_path / version).mkdir()
        (tmp_path / version / "a.yaml").write_text(policy(route))
        os.utime(tmp_path / version / "a.yaml", ns=(1, 1))
    (tmp_path / "..data").symlink_to("..v0")
    (tmp_path / "a.yaml").symlink_to("..data/a.yaml")
    watched = Watched(tmp_path)
    assert watched.route_names() == ["one"]
    (tmp_path / "new").symlink_to("..v1")
    (tmp_path / "new").rename(tmp_path / "..data")
    assert watched.route_names() == ["two"]


def test_a_bad_edit_keeps_the_old_set_and_is_reported_once(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(policy("one"))
    watched = Watched(tmp_path)
    before = watched.watcher.current
    (tmp_path / "a.yaml").write_text("version: 1\nrouts: []\n")
    assert watched.route_names() == ["one"]
    assert watched.watcher.current is before
    assert watched.watcher.failed
    assert [str(finding).rpartition("/")[2] for finding in watched.reports[0]] == [
        "a.yaml:2:1: routs: unknown key routs (did you mean routes?)"
    ]
    os.utime(tmp_path / "a.yaml", ns=(1, 1))
    assert watched.route_names() == ["one"]
    assert len(watched.reports) == 1
    (tmp_path / "a.yaml").write_text("version: 1\nrout: []\n")
    assert watched.route_names() == ["one"]
    assert len(watched.reports) == 2


def test_recovers_from_a_bad_edit_and_reports_the_same_fault_again_later(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(policy("one"))
    watched = Watched(tmp_path)
    for attempt in (1, 2):
        (tmp_path / "a.yaml").write_text("")
        assert watched.route_names()[0] in ("one", f"good{attempt - 1}")
        assert len(watched.reports) == attempt
        (tmp_path / "a.yaml").write_text(policy(f"good{attempt}"))
        assert watched.route_names() == [f"good{attempt}"]
        assert not watched.watcher.failed


def test_a_file_that_is_truncated_while_it_is_written_does_not_remove_the_routes(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(policy("one"))
    watched = Watched(tmp_path)
    (tmp_path / "a.yaml").write_text("")
    assert watched.route_names() == ["one"]


def test_the_same_policy_written_differently_stays_the_same_object(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(policy("one"))
    watched = Watched(tmp_path)
    watched.route_names()
    before = watched.watcher.current
    (tmp_path / "a.yaml").write_text("# a comment\n" + policy("one"))
    assert watched.watcher.changed()
    assert watched.watcher.reload() is before


def test_a_rotated_secret_is_taken_over(tmp_path: Path) -> None:
    secret, policies = tmp_path / "key", tmp_path / "policies"
    policies.mkdir()
    secret.write_text("sk-1\n")
    (policies / "a.yaml").write_text(
        f"version: 1\nupstreams: {{a: {{base_url: 'http://h/v1', api_key: '${{file:{secret}}}'}}}}\n"
    )
    watched = Watched(policies)
    watched.route_names()
    # The secret may have changed while the first look found out that there is one.
    assert watched.watcher.changed()
    watched.route_names()
    assert not watched.watcher.changed()
    secret.write_text("sk-22\n")
    watched.route_names()
    key = watched.watcher.current.upstreams["a"].api_key
    assert key is not None
    assert key.reveal() == "sk-22"


def test_a_removed_file_takes_its_routes_along_a_removed_directory_does_not(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(policy("one"))
    (tmp_path / "b.yaml").write_text("version: 1\nroutes: [{name: two, match: {path: /x}}]\n")
    watched = Watched(tmp_path)
    (tmp_path / "b.yaml").unlink()
    assert watched.route_names() == ["one"]
    (tmp_path / "a.yaml").unlink()
    assert watched.route_names() == ["one"]
    assert watched.watcher.failed


def test_a_return_to_the_current_set_is_said_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "weir")
    (tmp_path / "a.yaml").write_text(policy("one"))
    watched = Watched(tmp_path)
    watched.route_names()
    assert caplog.messages == []
    (tmp_path / "a.yaml").write_text("")
    watched.route_names()
    (tmp_path / "a.yaml").write_text(policy("one"))
    watched.route_names()
    (tmp_path / "a.yaml").write_text("# once more\n" + policy("one"))
    watched.route_names()
    assert caplog.messages == ["policies on disk are valid again, and the same as those in force"]


def test_a_new_set_after_a_bad_one_is_the_callers_to_announce(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "weir")
    (tmp_path / "a.yaml").write_text(policy("one"))
    watched = Watched(tmp_path)
    (tmp_path / "a.yaml").write_text("")
    watched.route_names()
    (tmp_path / "a.yaml").write_text(policy("other"))
    assert watched.route_names() == ["other"]
    assert caplog.messages == []
