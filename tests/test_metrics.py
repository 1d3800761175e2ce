"""Metrics: the table, the numbers of a process, and the text that Prometheus reads."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from holdfast.errors import StoreTimeout, StoreUnavailable
from holdfast.runtime.hooks import Hooks
from holdfast.runtime.metrics import METRICS, OTHER, MeasuredStore, Registry, Series, render, watch_duties
from holdfast.stores.memory.store import MemoryStore
from holdfast.testing import FakeClock
from holdfast.testing.faults import BEFORE, FaultyStore, scripted
from tests.factory import make_job

Sample = tuple[str, tuple[tuple[str, str], ...]]


def samples(text: str) -> dict[Sample, float]:
    """Read the exposition as Prometheus' own client does."""
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): float(sample.value)
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def one_of_each() -> Series:
    registry = Registry()
    for name, metric in METRICS.items():
        labels = tuple(f"a {label}" for label in metric.labels)
        if metric.kind == "histogram":
            registry.observe(name, *labels, value=0.3)
        else:
            registry.inc(name, *labels, by=2.5)
    return registry.read()


def test_prometheus_reads_every_metric_with_its_type_and_help() -> None:
    families = {family.name: family for family in text_string_to_metric_families(render(one_of_each()))}
    for name, metric in METRICS.items():
        family = families[name.removesuffix("_total")]
        assert family.type == metric.kind, name
        assert family.documentation == metric.help
        assert {label for sample in family.samples for label in sample.labels} - {"le"} == set(metric.labels)


@pytest.mark.parametrize("name", METRICS)
def test_every_metric_is_named_as_prometheus_asks(name: str) -> None:
    metric = METRICS[name]
    assert re.fullmatch(r"holdfast(_[a-z]+)+", name)
    assert name.endswith("_total") == (metric.kind == "counter")
    assert metric.kind != "histogram" or name.endswith("_seconds")
    assert bool(metric.buckets) == (metric.kind == "histogram")
    assert list(metric.buckets) == sorted(set(metric.buckets))
    assert not {"worker", "host", "job", "key", "error", "id", "le"} & set(metric.labels)
    assert metric.most > 1 or not [label for label in metric.labels if label not in ("version", "store")]


def test_text_in_labels_is_escaped() -> None:
    registry = Registry()
    strange = 'a "queue"\\with\na line} 1\n'
    registry.put("holdfast_queue_paused", strange, value=1)
    assert samples(render(registry.read())) == {("holdfast_queue_paused", (("queue", strange),)): 1.0}


def test_a_histogram_counts_up_to_each_bound_and_beyond() -> None:
    registry = Registry()
    for value in (0.005, 0.006, 5000.0, -1.0):
        registry.observe("holdfast_attempt_duration_seconds", "t", value=value)
    found = samples(render(registry.read()))

    def up_to(bound: str) -> float:
        return found["holdfast_attempt_duration_seconds_bucket", (("le", bound), ("task", "t"))]

    assert [up_to(bound) for bound in ("0.005", "0.025", "3600", "+Inf")] == [2, 3, 3, 4]
    assert found["holdfast_attempt_duration_seconds_count", (("task", "t"),)] == 4
    assert found["holdfast_attempt_duration_seconds_sum", (("task", "t"),)] == pytest.approx(5000.011)


def test_more_label_values_than_the_bound_are_counted_as_other() -> None:
    registry = Registry()
    most = METRICS["holdfast_attempt_wait_seconds"].most
    for number in range(most + 5):
        registry.observe("holdfast_attempt_wait_seconds", f"q{number}", value=1.0)
        registry.peak("holdfast_queue_oldest_due_seconds", f"q{number}", value=float(number % (most + 3)))
    found = registry.read()["holdfast_attempt_wait_seconds"]
    assert len(found) == most + 1
    other = found[OTHER,]
    assert isinstance(other, list)
    assert sum(other[:-1]) == 5
    assert registry.folded == 10
    assert registry.read()["holdfast_queue_oldest_due_seconds"][OTHER,] == most + 2


def test_what_one_registry_gives_away_another_adds_up() -> None:
    child, parent = Registry(), Registry()
    for _ in range(3):
        child.inc("holdfast_beats_total", "ok")
        child.observe("holdfast_beat_headroom_seconds", value=3.0)
        for name, found in child.take().items():
            for labels, value in found.items():
                parent.merge(name, labels, value)
    assert child.read() == {}
    numbers = samples(render(parent.read()))
    assert numbers["holdfast_beats_total", (("result", "ok"),)] == 3
    assert numbers["holdfast_beat_headroom_seconds_sum", ()] == 9


def test_calls_of_the_store_are_timed_and_their_errors_counted(clock: FakeClock) -> None:
    registry = Registry()
    faulty: Any = FaultyStore(MemoryStore(clock=clock), scripted([None, BEFORE]), clock.advance)
    store = MeasuredStore(faulty, clock, registry)
    store.counts()
    with pytest.raises(StoreUnavailable):
        store.counts()
    store.is_woken()
    assert store.url.startswith("memory:")
    numbers = samples(render(registry.read()))
    assert numbers["holdfast_store_operation_duration_seconds_count", (("verb", "counts"),)] == 2
    assert numbers["holdfast_store_errors_total", (("kind", "unavailable"), ("verb", "counts"))] == 1
    assert {dict(labels).get("verb") for _, labels in numbers} == {"counts"}


def test_a_job_counts_as_enqueued_when_it_was_stored(clock: FakeClock) -> None:
    registry = Registry()
    store: Any = MeasuredStore(MemoryStore(clock=clock), clock, registry)
    jobs = [make_job(queue="mail"), make_job(queue="mail"), make_job(queue="media")]
    store.add(jobs)
    store.add(jobs=jobs)  # they are there already
    assert registry.read()["holdfast_jobs_enqueued_total"] == {("mail",): 2.0, ("media",): 1.0}


def test_a_process_shows_which_duties_it_has() -> None:
    hooks, registry = Hooks(), Registry()
    watch_duties(hooks, registry)
    for kind, has in (("duty_acquired", 1.0), ("duty_lost", 0.0)):
        hooks.emit(kind, {"duty": "reaper", "holder": "me", "term": 4})
        assert hooks.flush()
        assert registry.read()["holdfast_duty_held"] == {("reaper",): has}
    assert registry.read()["holdfast_duty_term"] == {("reaper",): 4.0}


def test_a_call_that_took_too_long_is_a_timeout_and_not_an_outage(clock: FakeClock) -> None:
    def too_slow() -> None:
        raise StoreTimeout("too slow")

    registry = Registry()
    store = MeasuredStore(type("Slow", (), {"counts": staticmethod(too_slow)})(), clock, registry)
    with pytest.raises(StoreTimeout):
        store.counts()
    assert registry.read()["holdfast_store_errors_total"] == {("counts", "timeout"): 1.0}


def test_the_docs_list_every_metric_as_it_is() -> None:
    page = (Path(__file__).parents[1] / "docs" / "monitoring.md").read_text("utf-8")
    rows = re.findall(r"^\| `(holdfast_\w+)` \| (\w+) \| (.*?) \| (.*) \|$", page, re.MULTILINE)
    assert {name: (kind, tuple(re.findall(r"\w+", labels)), text + ".") for name, kind, labels, text in rows} == {
        name: (metric.kind, metric.labels, metric.help) for name, metric in METRICS.items()
    }
