"""The models of a server, loaded in parallel, each with a worker thread."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence, Sized
from contextlib import nullcontext
from pathlib import Path
from typing import Any, Literal, NamedTuple

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

from vitrail.core.errors import VitrailError, did_you_mean
from vitrail.models.checkpoint import LoadedModel
from vitrail.serve.batching import BatchWorker
from vitrail.serve.settings import ServeSettings
from vitrail.tasks.serving import ONLY_EXPLAINING, EngineChoice, RefusalError, Servable, open_servable

log = logging.getLogger(__name__)

Source = str | Path | LoadedModel
State = Literal["loading", "ready", "failed"]
CLOSE_S = 60.0  # for running jobs when the server stops
AS_THEY_ARE = (None, "torch")  # engines without conversion or compilation
COMPILED_BY_BATCH = ("compiled",)  # engines with different programs for batches and single inputs
# Tracing and compiling change global state: patches of torch, precisions, standard output.
_CONVERTING = threading.Lock()


class Explain(NamedTuple):
    """A job that wants an explanation, not only a prediction."""

    work: Any


class HostedModel:
    """One model, from before it is loaded."""

    def __init__(self, name: str, source: Source) -> None:
        self.name, self.source = name, source
        self.state: State = "loading"
        self.error: VitrailError | None = None
        self.seconds = 0.0
        self.served: Servable | None = None
        self.worker: BatchWorker | None = None
        self.is_settled = threading.Event()
        self.facts: dict[str, Any] = {}

    def describe(self) -> dict[str, Any]:
        facts: dict[str, Any] = {"name": self.name, "state": self.state, **self.facts}
        if self.error is not None:
            facts["error"] = str(self.error)
        if self.worker is not None:
            facts["waiting"] = len(self.worker)
        return facts

    def ready(self) -> tuple[Servable, BatchWorker]:
        """Return the model and its worker.

        Raises:
            RefusalError: it is still loading, or loading failed.
        """
        if self.served is None or self.worker is None:
            is_failed = self.state == "failed"
            raise RefusalError(
                503,
                f"the model {self.name} could not be loaded: {self.error}"
                if is_failed
                else f"the model {self.name} is still being loaded",
                expected="a model that is ready; see /models",
                remedy="Start the server again with a model that loads" if is_failed else "Retry in a while",
                retry_after_s=None if is_failed else 2,
            )
        return self.served, self.worker


class Hosting:
    """All models of a server.

    Args:
        on_loaded: called when a model is ready or has failed, from the loading thread.
    """

    def __init__(
        self,
        sources: Mapping[str, Source],
        settings: ServeSettings,
        *,
        on_loaded: Callable[[HostedModel], None] = lambda model: None,
    ) -> None:
        self.models = {name: HostedModel(name, source) for name, source in sources.items()}
        self.is_stopping = False
        self.settings, self.metrics, self._on_loaded = settings, Metrics(), on_loaded
        self._threads = [
            threading.Thread(target=self._load, args=(model,), name=f"vitrail-load-{model.name}", daemon=True)
            for model in self.models.values()
        ]

    def start(self) -> None:
        """Load all models in parallel threads, so that none waits for a larger one.

        Those that are converted or compiled take turns, as neither is thread-safe.
        """
        for thread in self._threads:
            thread.start()

    def wait(self) -> None:
        for model in self.models.values():
            model.is_settled.wait()

    @property
    def is_ready(self) -> bool:
        return not self.is_stopping and all(model.state == "ready" for model in self.models.values())

    @property
    def is_healthy(self) -> bool:
        return all(model.worker is None or model.worker.is_alive for model in self.models.values())

    def find(self, name: str | None) -> HostedModel:
        """Return a model by its name, or the only one.

        Raises:
            RefusalError: there is no such model, or several and no name was given.
        """
        if name is None and len(self.models) == 1:
            return next(iter(self.models.values()))
        if name is None:
            raise RefusalError(
                422,
                "the request names no model, and there are several",
                expected="model=NAME, one of " + ", ".join(self.models),
                remedy="Add it to the address, the form or the JSON",
            )
        if name not in self.models:
            raise RefusalError(
                404,
                f"there is no model {name[:100]!r}",
                expected="one of " + ", ".join(self.models),
                remedy=did_you_mean(name[:100], self.models),
            )
        return self.models[name]

    def close(self) -> None:
        self.is_stopping = True
        for thread in self._threads:
            if thread.is_alive():  # one that runs C++ while the interpreter ends aborts the process
                thread.join(CLOSE_S)
        for model in self.models.values():
            if model.worker is not None:
                model.worker.close(CLOSE_S)

    def _load(self, model: HostedModel) -> None:
        began, settings = time.perf_counter(), self.settings
        choice = EngineChoice(settings.engine, settings.precision, settings.max_batch, settings.trust)
        try:
            with nullcontext() if settings.engine in AS_THEY_ARE else _CONVERTING:
                served = open_servable(model.source, choice)
                warm_up(served, settings.max_batch)
            facts = served.describe()
            options = [
                name
                for name in served.option_names
                if facts.get("can_explain") or name not in ONLY_EXPLAINING
            ]
            model.facts = {"task": served.task, "options": options, **facts}
            model.worker = BatchWorker(
                model.name,
                lambda works: compute(served, works),
                settings,
                lambda size, seconds: self.metrics.add_batch(model.name, size, seconds),
            )
            self.metrics.watch_queue(model.name, model.worker)
            model.served, model.state = served, "ready"
        except VitrailError as error:
            model.error, model.state = error, "failed"
        except Exception as error:
            log.exception("the model %s could not be loaded", model.name)
            model.error = RefusalError(
                503,
                f"loading it failed: {type(error).__name__}: {error}",
                expected="a model that loads",
                remedy="See the log of the server",
            )
            model.state = "failed"
        model.seconds = time.perf_counter() - began
        model.is_settled.set()
        self._on_loaded(model)


def warm_up(served: Servable, max_batch: int) -> None:
    """Run the model once; if the engine compiles per batch size, once for each kind of batch."""
    sizes = {1}
    if served.describe()["engine"] in COMPILED_BY_BATCH:
        sizes |= {min(2, max_batch), max_batch}
    for size in sorted(sizes):
        served.warm_up(size)


def compute(served: Servable, works: Sequence[Any]) -> Sequence[Any]:
    """Predict a batch, or explain its only job."""
    if isinstance(works[0], Explain):
        return [served.explain(each.work) for each in works]
    return served.answer(works)


LATENCY_BUCKETS = (0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60)
BATCH_BUCKETS = (1, 2, 4, 8, 16, 32, 64, 128)
CONTENT_TYPE = CONTENT_TYPE_LATEST


class Metrics:
    """Metrics of one server, separate from those of others in the same process."""

    def __init__(self) -> None:
        self._registry = registry = CollectorRegistry()
        ProcessCollector(registry=registry)
        PlatformCollector(registry=registry)

        def histogram(name: str, text: str, labels: list[str], buckets: Sequence[float]) -> Histogram:
            return Histogram(f"vitrail_{name}", text, labels, buckets=buckets, registry=registry)

        labels, text = (["endpoint", "model"], "Seconds from a request's headers to the end of its response")
        self._requests = Counter("vitrail_requests", "Requests", [*labels, "status"], registry=registry)
        self._latency = histogram("request_seconds", text, labels, LATENCY_BUCKETS)
        self._sizes = histogram("batch_size", "Inputs computed together", ["model"], BATCH_BUCKETS)
        self._seconds = histogram("batch_seconds", "Seconds that a batch took", ["model"], LATENCY_BUCKETS)
        text = "Inputs that wait for a model, including those being decoded"
        self._queue = Gauge("vitrail_queue_length", text, ["model"], registry=registry)

    def add_request(self, endpoint: str, model: str, status: int, seconds: float) -> None:
        self._requests.labels(endpoint, model, str(status)).inc()
        self._latency.labels(endpoint, model).observe(seconds)

    def add_batch(self, model: str, size: int, seconds: float) -> None:
        self._sizes.labels(model).observe(size)
        self._seconds.labels(model).observe(seconds)

    def watch_queue(self, model: str, queue: Sized) -> None:
        self._queue.labels(model).set_function(lambda: float(len(queue)))

    def text(self) -> bytes:
        return generate_latest(self._registry)
