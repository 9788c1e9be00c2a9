"""The page that Prometheus reads: every figure against the definitions, and nothing said that is not known."""

from __future__ import annotations

import math
import re

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from eyas.dialects import counters
from eyas.metrics import Acceptance, Round
from eyas.serve import metric_table as table
from eyas.serve.client import EngineClient
from eyas.serve.metrics_page import CONTENT_TYPE, HttpMetrics, render
from support.fake_client import FakeClient, a_status

Series = dict[tuple[str, tuple[str, ...]], float]


def scraped(client: EngineClient, http: HttpMetrics | None = None) -> Series:
    text = render(client, http or HttpMetrics()).decode()
    return {
        (sample.name, tuple(sample.labels.values())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def status_of(rounds: list[Round]):
    deepest = max((r.longest for r in rounds), default=0)
    whole = [r for r in rounds if not r.cut]
    histogram = [sum(r.accepted == i for r in whole) for i in range(deepest + 1)]
    possible = [sum(r.longest > i for r in whole) for i in range(deepest)]
    return a_status(histogram, possible, num_steps=2.0, plain=50.0)


rounds_lists = st.lists(
    st.integers(1, 5).flatmap(lambda k: st.builds(Round, st.integers(0, k), st.just(k))), min_size=1, max_size=40
)


@given(rounds_lists)
def test_the_counters_give_what_the_metrics_module_gives(rounds: list[Round]) -> None:
    acceptance = Acceptance()
    for one in rounds:
        acceptance.add("c", one)
    seen = scraped(FakeClient(status_of(rounds)))
    total = seen["eyas_rounds_total", ()]
    assert 1 + seen["eyas_accepted_tokens_total", ()] / total == pytest.approx(acceptance.accept_length)
    for i in range(1, acceptance.max_depth + 1):
        at = (str(i),)
        assert seen["eyas_accepted_tokens_per_position_total", at] / total == pytest.approx(acceptance.survival(i))
    ceiling = 1 + sum(v for (name, _), v in seen.items() if name.startswith("eyas_possible")) / total
    assert ceiling == pytest.approx(1 + sum(r.longest for r in rounds) / len(rounds))


@given(rounds_lists, rounds_lists)
def test_a_reader_of_counters_counts_the_same(earlier: list[Round], later: list[Round]) -> None:
    before = counters.read_metrics(render(FakeClient(status_of(earlier)), HttpMetrics()).decode())
    after = counters.read_metrics(render(FakeClient(status_of(earlier + later)), HttpMetrics()).decode())
    assert counters.has_counters(after)
    counts = counters.counts_between(before, after)
    accepted = [r.accepted for r in later]
    assert (counts.rounds, counts.accepted) == (len(later), sum(accepted))
    assert counts.histogram is not None
    assert sum(i * n for i, n in enumerate(counts.histogram)) == sum(accepted)
    assert counts.histogram[0] == accepted.count(0)
    assert counts.accept_length == pytest.approx(1 + sum(accepted) / len(later))


def test_before_the_engine_is_ready_nothing_is_said_of_it() -> None:
    seen = scraped(FakeClient())
    assert seen["eyas_ready", ()] == 0
    assert not {name for name, _ in seen} & {metric.name for metric in table.ENGINE}
    assert "eyas_info" not in {name for name, _ in seen}


def test_what_is_not_known_is_absent_and_not_zero() -> None:
    seen = scraped(FakeClient(a_status([3], [])))
    assert ("eyas_plain_tokens_per_second", ()) not in seen
    assert ("eyas_num_steps", ()) not in seen
    assert seen["eyas_ready", ()] == 1


def test_an_idle_engine_has_no_pace() -> None:
    """Its last status is of the time when something ran."""
    busy = a_status([3], [], plain=50.0)
    seen = scraped(FakeClient(msgspec.structs.replace(busy, running=0)))
    assert seen["eyas_tokens_per_second", ()] == 0
    assert ("eyas_plain_tokens_per_second", ()) not in seen
    assert scraped(FakeClient(busy))["eyas_tokens_per_second", ()] == 80


def test_the_http_side_counts() -> None:
    http = HttpMetrics()
    http.answered("/v1/completions", 200)
    http.answered("/v1/completions", 429)
    http.answered("/v1/completions", 429)
    http.first_token(0.2)
    http.more_tokens(0.03, 3)
    http.finished(1.5, 10, 20)
    seen = scraped(FakeClient(a_status([1], [])), http)
    assert seen["eyas_http_requests_total", ("/v1/completions", "429")] == 2
    assert seen["eyas_time_to_first_token_seconds_sum", ()] == pytest.approx(0.2)
    assert seen["eyas_inter_token_latency_seconds_count", ()] == 3
    assert seen["eyas_inter_token_latency_seconds_bucket", ("0.01",)] == 3
    assert seen["eyas_inter_token_latency_seconds_bucket", ("0.005",)] == 0
    assert seen["eyas_request_seconds_bucket", ("2.5",)] == 1
    assert (seen["eyas_request_prompt_tokens_sum", ()], seen["eyas_request_answer_tokens_sum", ()]) == (10, 20)


def test_a_delivery_without_tokens_counts_none() -> None:
    http = HttpMetrics()
    http.more_tokens(0.5, 0)
    assert scraped(FakeClient(), http)["eyas_inter_token_latency_seconds_count", ()] == 0


def test_two_servers_in_one_process_share_nothing() -> None:
    first, second = HttpMetrics(), HttpMetrics()
    first.answered("/health", 200)
    assert ("eyas_http_requests_total", ("/health", "200")) not in scraped(FakeClient(), second)


def test_the_page_shows_the_table_and_nothing_else() -> None:
    http = HttpMetrics()
    http.answered("/health", 200)
    client = FakeClient(a_status([1, 2], [3], num_steps=1.0, plain=2.0))
    text = render(client, http).decode()
    types = dict(re.findall(r"^# TYPE (\S+) (\S+)$", text, flags=re.M))
    assert types == {metric.name: metric.type for group in table.GROUPS.values() for metric in group}
    assert "_created" not in text
    assert CONTENT_TYPE.startswith("text/plain")


def test_names_follow_prometheus() -> None:
    for metric in (metric for group in table.GROUPS.values() for metric in group):
        assert metric.name.startswith("eyas_")
        assert metric.name.endswith("_total") == (metric.type == "counter"), metric.name
        assert (metric.unit == "seconds") == ("_seconds" in metric.name), metric.name
        assert bool(metric.buckets) == (metric.type == "histogram")
        assert list(metric.buckets) == sorted(metric.buckets)
        assert math.inf not in metric.buckets


def test_the_readers_names_are_names_of_the_table() -> None:
    known = {metric.name.removesuffix("_total") for metric in table.ENGINE}
    ours = {metric.name for metric in counters.METRICS if metric.engine == "eyas" and metric.where == "metrics"}
    assert ours
    assert ours <= known


def test_the_queries_name_only_what_is_there() -> None:
    known = {metric.name for group in table.GROUPS.values() for metric in group}
    for query in table.QUERIES.values():
        for name in re.findall(r"\beyas_\w+", query):
            assert name.removesuffix("_bucket") in known, name
