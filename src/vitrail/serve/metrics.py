"""Prometheus metrics of a server."""

from __future__ import annotations

from collections.abc import Sized

from prometheus_client import (
    CONTENT_TYPE_LATEST,
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    PlatformCollector,
    ProcessCollector,
    generate_latest,
)

LATENCY_BUCKETS = (0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60)
BATCH_BUCKETS = (1, 2, 4, 8, 16, 32, 64, 128)
CONTENT_TYPE = CONTENT_TYPE_LATEST


class Metrics:
    """Metrics of one server, separate from those of others in the same process."""

    def __init__(self) -> None:
        self._registry = registry = CollectorRegistry()
        ProcessCollector(registry=registry)
        PlatformCollector(registry=registry)
        self._requests = Counter(
            "vitrail_requests",
            "Requests that were answered",
            ["endpoint", "model", "status"],
            registry=registry,
        )
        self._latency = Histogram(
            "vitrail_request_seconds",
            "Seconds from a request's headers to the end of its answer",
            ["endpoint", "model"],
            buckets=LATENCY_BUCKETS,
            registry=registry,
        )
        self._batch_sizes = Histogram(
            "vitrail_batch_size",
            "Inputs that were computed together",
            ["model"],
            buckets=BATCH_BUCKETS,
            registry=registry,
        )
        self._batch_seconds = Histogram(
            "vitrail_batch_seconds",
            "Seconds that a batch was computed",
            ["model"],
            buckets=LATENCY_BUCKETS,
            registry=registry,
        )
        self._queue = Gauge(
            "vitrail_queue_length",
            "Inputs that wait for a model, those that are being decoded counted",
            ["model"],
            registry=registry,
        )

    def add_request(self, endpoint: str, model: str, status: int, seconds: float) -> None:
        """Count an answered request."""
        self._requests.labels(endpoint, model, str(status)).inc()
        self._latency.labels(endpoint, model).observe(seconds)

    def add_batch(self, model: str, size: int, seconds: float) -> None:
        """Count a batch."""
        self._batch_sizes.labels(model).observe(size)
        self._batch_seconds.labels(model).observe(seconds)

    def watch_queue(self, model: str, queue: Sized) -> None:
        """Report the length of a queue on demand."""
        self._queue.labels(model).set_function(lambda: float(len(queue)))

    def text(self) -> bytes:
        """Return all metrics in Prometheus's text format."""
        return generate_latest(self._registry)
