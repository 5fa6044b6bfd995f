"""Numbers add up: over observations, over processes, and on the page that Prometheus reads."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from proxy.observe import catalogue as m
from proxy.observe.catalogue import METRICS, Kind, Metric
from proxy.observe.metrics import OTHER, Metrics, Snapshot, merge, observe_into, render

Sample = tuple[str, tuple[tuple[str, str], ...]]

_texts = st.text(max_size=6) | st.sampled_from(
    ["chat", 'quoted "x"', "back\\slash", "new\nline", "무엇", "{}"]
)
_values = st.floats(0, 1e6) | st.sampled_from([0.0, 0.005, 0.01, 1.0, 600.0, 601.0])


@st.composite
def happenings(draw: st.DrawFn) -> tuple[Metric, tuple[str, ...], float]:
    """Draw a metric, its label values and a figure."""
    metric = draw(st.sampled_from(METRICS))
    labels = tuple(draw(_texts) for _ in metric.labels)
    return metric, labels, draw(_values)


def note(metrics: Metrics, metric: Metric, labels: tuple[str, ...], value: float) -> None:
    match metric.kind:
        case Kind.COUNTER:
            metrics.add(metric, labels, value)
        case Kind.GAUGE:
            metrics.set(metric, labels, value)
        case Kind.HISTOGRAM:
            metrics.observe(metric, labels, value)


def page(snapshot: Snapshot) -> dict[Sample, float]:
    """Return every sample of a rendered page, as Prometheus reads it."""
    samples = {}
    for family in text_string_to_metric_families(render(snapshot).decode()):
        for sample in family.samples:
            samples[sample.name, tuple(sorted(sample.labels.items()))] = sample.value
    return samples


def labelled(metric: Metric, labels: tuple[str, ...], **more: str) -> tuple[tuple[str, str], ...]:
    return tuple(sorted({**dict(zip(metric.labels, labels, strict=True)), **more}.items()))


@given(st.lists(happenings(), max_size=30))
def test_the_page_says_what_happened(happened: list[tuple[Metric, tuple[str, ...], float]]) -> None:
    metrics = Metrics()
    seen: dict[tuple[Metric, tuple[str, ...]], list[float]] = defaultdict(list)
    for metric, labels, value in happened:
        note(metrics, metric, labels, value)
        seen[metric, labels].append(value)
    samples = page(metrics.snapshot())
    for (metric, labels), values in seen.items():
        match metric.kind:
            case Kind.COUNTER:
                assert samples[metric.name, labelled(metric, labels)] == pytest.approx(sum(values))
            case Kind.GAUGE:
                assert samples[metric.name, labelled(metric, labels)] == values[-1]
            case Kind.HISTOGRAM:
                assert samples[f"{metric.name}_count", labelled(metric, labels)] == len(values)
                assert samples[f"{metric.name}_sum", labelled(metric, labels)] == pytest.approx(sum(values))
                for bound in metric.bounds:
                    within = sum(value <= bound for value in values)
                    assert samples[f"{metric.name}_bucket", labelled(metric, labels, le=str(bound))] == within
                assert samples[f"{metric.name}_bucket", labelled(metric, labels, le="+Inf")] == len(values)


@given(st.lists(st.tuples(happenings(), st.integers(0, 3)), max_size=30))
def test_several_processes_say_together_what_one_would(
    happened: list[tuple[tuple[Metric, tuple[str, ...], float], int]],
) -> None:
    whole = Metrics()
    workers = [Metrics() for _ in range(4)]
    for (metric, labels, value), worker in happened:
        if metric.kind is Kind.GAUGE:
            continue
        note(whole, metric, labels, value)
        note(workers[worker], metric, labels, value)
    # As it travels between processes.
    told: Iterable[Snapshot] = [json.loads(json.dumps(worker.snapshot())) for worker in workers]
    together, alone = page(merge(told)), page(whole.snapshot())
    assert together.keys() == alone.keys()
    assert all(value == pytest.approx(alone[name]) for name, value in together.items())


def test_gauges_that_count_add_up_and_those_that_say_yes_do_not() -> None:
    workers = [Metrics() for _ in range(3)]
    for worker in workers:
        worker.set(m.IN_FLIGHT, (), 2)
        worker.set(m.POLICY, ("abc",), 1)
        worker.set(m.POLICY_BAD, (), 0)
    workers[1].set(m.POLICY_BAD, (), 1)
    samples = page(merge(worker.snapshot() for worker in workers))
    assert samples["weir_in_flight", ()] == 6
    assert samples["weir_policy_info", (("version", "abc"),)] == 1
    assert samples["weir_policy_rejected", ()] == 1


def test_merging_changes_nothing_of_what_is_merged() -> None:
    metrics = Metrics()
    metrics.set(m.POLICY, ("abc",), 1)
    metrics.add(m.ERRORS, ("internal_error",), 2)
    before = metrics.snapshot()
    merge([before, metrics.snapshot(), metrics.snapshot()])
    assert before == metrics.snapshot()


def test_series_are_bounded_and_nothing_is_lost_by_that() -> None:
    metrics = Metrics()
    for number in range(5_000):
        metrics.add(m.LANES, ("stream", f"reason {number}"))
    samples = page(metrics.snapshot())
    lanes = {labels: value for (name, labels), value in samples.items() if name == m.LANES.name}
    assert len(lanes) <= 2_001
    assert sum(lanes.values()) == 5_000
    assert lanes[labelled(m.LANES, (OTHER, OTHER))] == 3_000
    metrics.add(m.LANES, ("stream", "reason 7"))
    known = {tuple(labels): cell for labels, cell in metrics.snapshot()[m.LANES.name]}
    assert known["stream", "reason 7"] == [2]


def test_a_gauge_whose_labels_change_can_be_forgotten() -> None:
    metrics = Metrics()
    metrics.set(m.POLICY, ("old",), 1)
    metrics.clear(m.POLICY)
    metrics.set(m.POLICY, ("new",), 1)
    assert [labels for labels, _ in metrics.snapshot()[m.POLICY.name]] == [["new"]]


def test_a_figure_on_a_bound_counts_below_it() -> None:
    cell = [0.0] * 4
    for value in (0.5, 1.0, 1.5, 2.0, 9.0):
        observe_into(cell, (1.0, 2.0), value)
    assert cell == [2, 2, 1, 14]


def test_every_metric_is_on_the_page_before_anything_has_happened() -> None:
    text = render(Metrics().snapshot()).decode()
    for metric in METRICS:
        assert f"# TYPE {metric.name} {metric.kind.value}\n" in text
        assert len(metric.bounds) == len(set(metric.bounds))
        assert list(metric.bounds) == sorted(metric.bounds)
