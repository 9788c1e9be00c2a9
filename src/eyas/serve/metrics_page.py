"""GET /metrics: the engine's figures and those of the HTTP side as Prometheus reads them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.registry import Collector

from eyas import __version__
from eyas.serve import metric_table as table
from eyas.serve.client import EngineClient
from eyas.serve.wire import Status

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class HttpMetrics:
    """What the HTTP side counts, in a registry of its own. Call it from one thread: the event loop's."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry(auto_describe=False)
        self._requests = _counter(table.HTTP_REQUESTS, self.registry)
        self._first_token = _histogram(table.FIRST_TOKEN, self.registry)
        self._inter_token = _histogram(table.INTER_TOKEN, self.registry)
        self._request_seconds = _histogram(table.REQUEST_SECONDS, self.registry)
        self._prompt_tokens = _histogram(table.PROMPT_TOKENS, self.registry)
        self._answer_tokens = _histogram(table.ANSWER_TOKENS, self.registry)

    def answered(self, route: str, status: int) -> None:
        """One HTTP request is done. ``route``: the path as it was declared, never as a client typed it."""
        self._requests.labels(route, str(status)).inc()

    def first_token(self, seconds: float) -> None:
        """An answer began ``seconds`` after its request arrived."""
        self._first_token.observe(seconds)

    def more_tokens(self, seconds: float, tokens: int) -> None:
        """An answer went on by ``tokens``, ``seconds`` after its tokens before."""
        for _ in range(tokens):
            self._inter_token.observe(seconds / tokens)

    def finished(self, seconds: float, prompt_tokens: int, answer_tokens: int) -> None:
        """A request is answered whole, ``seconds`` after it arrived."""
        self._request_seconds.observe(seconds)
        self._prompt_tokens.observe(prompt_tokens)
        self._answer_tokens.observe(answer_tokens)


def render(client: EngineClient, http: HttpMetrics) -> bytes:
    """The page's body, of :data:`CONTENT_TYPE`. Before the engine is ready its own figures are absent, never 0."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_All(client, http))
    return generate_latest(registry)


class _All(Collector):
    def __init__(self, client: EngineClient, http: HttpMetrics) -> None:
        self.client, self.http = client, http

    def collect(self) -> Iterator[Family]:
        yield from _server(self.client)
        if self.client.status is not None:
            yield from _engine(self.client.status)
        yield from _without_created(self.http.registry.collect())


def _server(client: EngineClient) -> Iterator[Family]:
    info = GaugeMetricFamily(table.INFO.name, table.INFO.definition, labels=table.INFO.labels)
    if client.ready is not None:
        info.add_metric([__version__, client.ready.model], 1)
    yield info
    yield _family(table.READY, client.ready is not None)
    yield _family(table.RESTARTS, client.restarts)


def _engine(status: Status) -> Iterator[Family]:
    for metric in table.ENGINE:
        assert metric.read is not None, metric.name
        figure = metric.read(status)
        if figure is not None:
            yield _family(metric, figure)


def _family(metric: table.Metric, figure: float | dict[int, int]) -> Family:
    kind = CounterMetricFamily if metric.type == "counter" else GaugeMetricFamily
    family = kind(metric.name, metric.definition, labels=metric.labels)
    if isinstance(figure, dict):
        for position, value in figure.items():
            family.add_metric([str(position)], value)
    else:
        family.add_metric([], figure)
    return family


def _without_created(families: Iterable[Family]) -> Iterator[Family]:
    """The library adds to each series when it was made, which no reader of this page asks for."""
    for family in families:
        family.samples = [sample for sample in family.samples if not sample.name.endswith("_created")]
        yield family


def _counter(metric: table.Metric, registry: CollectorRegistry) -> Counter:
    return Counter(metric.name, metric.definition, metric.labels, registry=registry)


def _histogram(metric: table.Metric, registry: CollectorRegistry) -> Histogram:
    return Histogram(metric.name, metric.definition, metric.labels, registry=registry, buckets=metric.buckets)
