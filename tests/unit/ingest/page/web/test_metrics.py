"""What the page tells of itself."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from prometheus_client.parser import text_string_to_metric_families

from ingest.page.sharing import SharedAnswers
from ingest.page.web.metrics import PageMetrics
from workers.errors import REASONS
from workers.events import Event
from workers.store.events import StoreRequested


@pytest.fixture
def answers() -> Iterator[SharedAnswers]:
    with ThreadPoolExecutor(1) as pool:
        yield SharedAnswers(pool, pool, 1000)


def samples(metrics: PageMetrics, answers: SharedAnswers) -> dict[tuple[str, str], float]:
    """Return values by name and the only label, if any."""
    return {
        (sample.name, "".join(value for name, value in sample.labels.items() if name != "le")): sample.value
        for family in text_string_to_metric_families(metrics.text(answers).decode())
        for sample in family.samples
    }


def test_every_reason_of_a_failure_begins_with_zero(answers: SharedAnswers) -> None:
    metrics = PageMetrics()
    metrics.failed("damaged_store")
    told = samples(metrics, answers)
    counts = {reason: told["dump_ingest_page_failures_total", reason] for reason in REASONS}
    assert counts == {**dict.fromkeys(REASONS, 0), "damaged_store": 1}


def test_answers_and_requests_are_counted_and_other_events_are_not(answers: SharedAnswers) -> None:
    metrics = PageMetrics()
    with metrics.answering("live"):
        metrics.observe(StoreRequested("get", 0.1))
        metrics.observe(Event())
    told = samples(metrics, answers)
    assert told["dump_ingest_page_answer_seconds_count", "live"] == 1
    assert told["dump_ingest_page_store_requests_total", "get"] == 1
    assert told["dump_ingest_page_kept_limit_bytes", ""] == 1000


def test_two_pages_in_one_process_count_apart(answers: SharedAnswers) -> None:
    first, second = PageMetrics(), PageMetrics()
    first.failed("damaged_store")
    assert samples(second, answers)["dump_ingest_page_failures_total", "damaged_store"] == 0
