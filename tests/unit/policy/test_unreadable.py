"""Which bodies may pass although they were not read."""

from __future__ import annotations

import pytest

from proxy.core.document import Document, DocumentError, TooManyParts
from proxy.core.errors import ProxyError
from proxy.policy.model import BoundStep, Match, OnOversize, Route
from proxy.policy.unreadable import check_names, check_passes_unread, is_readable_elsewhere
from proxy.steps.cap_output import STEP, Config

LIMIT = BoundStep(STEP, Config(max=10))


def route(on_oversize: OnOversize = OnOversize.AUTO, limits: bool = True) -> Route:
    return Route("r", Match(), (LIMIT,) if limits else (), on_oversize=on_oversize)


def status(problem: DocumentError, *routes: Route, is_known_api: bool = True) -> int:
    try:
        check_passes_unread(problem, routes, is_known_api=is_known_api)
    except ProxyError as error:
        return error.kind.status
    return 200


@pytest.mark.parametrize(
    ("on_oversize", "limits", "expected"),
    [
        (OnOversize.AUTO, True, 413),
        (OnOversize.AUTO, False, 200),
        (OnOversize.REJECT, False, 413),
        (OnOversize.PASS, True, 200),
    ],
)
def test_too_many_parts_are_treated_as_too_many_bytes(
    on_oversize: OnOversize, limits: bool, expected: int
) -> None:
    assert status(TooManyParts(), route(on_oversize, limits)) == expected
    assert status(TooManyParts(), route(on_oversize, limits), is_known_api=False) == expected


@pytest.mark.parametrize("reason", ["not_json", "not_an_object", "too_deep"])
def test_other_unreadable_bodies_are_invalid_where_a_limit_holds(reason: str) -> None:
    assert status(DocumentError(reason), route()) == 400
    assert status(DocumentError(reason), route(limits=False)) == 200
    assert status(DocumentError(reason), route(), is_known_api=False) == 200


def test_an_empty_body_has_nothing_to_limit() -> None:
    assert status(DocumentError("empty"), route()) == 200


def test_only_valid_json_is_readable_elsewhere() -> None:
    assert is_readable_elsewhere(TooManyParts())
    assert is_readable_elsewhere(DocumentError("too_deep"))
    assert not is_readable_elsewhere(DocumentError("not_json"))


@pytest.mark.parametrize(("limits", "is_refused"), [(True, True), (False, False)])
def test_a_second_model_in_disguise_is_refused_where_a_limit_may_hang_on_it(
    limits: bool, is_refused: bool
) -> None:
    document = Document.parse(b'{"model":"a","Model":"b"}')
    if is_refused:
        with pytest.raises(ProxyError) as refusal:
            check_names(document, (route(limits=limits),))
        assert refusal.value.param == "Model"
    else:
        check_names(document, (route(limits=limits),))
