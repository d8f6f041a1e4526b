"""Dynamic batching: one thread per model runs waiting inputs together.

The queue is bounded, and slots are reserved before an input is prepared, so that accepted inputs are answered
and others refused immediately. An idle model starts after a short wait for more inputs, unless batching does
not pay; a busy one takes what is waiting when it is done. Batch sizes are learned (``BatchSizes``).
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Hashable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from statistics import median
from typing import Any

from vitrail.serve.settings import ServeSettings
from vitrail.tasks.serving import RefusalError, too_many_inputs

log = logging.getLogger(__name__)

LONGEST_RETRY_S = 60
SMOOTHING = 0.1  # weight of the last batch in the running mean of the time per input


@dataclass(eq=False)
class Job:
    """One input that waits for its result."""

    work: Any
    """The prepared input."""
    group: Hashable | None
    """Jobs of equal groups may share a batch; None is always computed alone."""
    answer: Future[Any] = field(default_factory=Future)
    """The result or the error; cancelled if nobody waits for it any longer."""
    since: float = field(default_factory=time.monotonic)
    """Time of arrival."""


class BatchWorker:
    """Runs jobs in a thread of its own, first come, first served, in batches.

    Args:
        name: of the thread, and in messages.
        compute: runs a batch and returns a result or an error for each job.
        on_batch: called with the size and seconds of each batch.
    """

    def __init__(
        self,
        name: str,
        compute: Callable[[Sequence[Any]], Sequence[Any]],
        settings: ServeSettings,
        on_batch: Callable[[int, float], None] = lambda size, seconds: None,
    ) -> None:
        self.name, self.settings = name, settings
        self._compute, self._on_batch = compute, on_batch
        self._sizes = sizes_by_group(settings.max_batch)
        self._waiting: deque[Job] = deque()
        self._num_reserved = 0
        self._seconds_each = 0.0
        self._is_closing = False
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._run, name=f"vitrail-{name}", daemon=True)
        self._thread.start()

    @property
    def is_alive(self) -> bool:
        return self._thread.is_alive()

    def __len__(self) -> int:
        """Return the number of waiting jobs, including reserved slots."""
        return len(self._waiting) + self._num_reserved

    @contextmanager
    def reserve(self, count: int) -> Iterator[Callable[[Job], Future[Any]]]:
        """Reserve slots, and return a function that submits a job; unused slots are released.

        Raises:
            RefusalError: too few free slots (429), more than the capacity (413), or the server stops (503).
        """
        self._take(count)
        left = count

        def submit(job: Job) -> Future[Any]:
            nonlocal left
            assert left > 0, "more jobs than were reserved"
            left -= 1
            with self._changed:
                self._num_reserved -= 1
                self._waiting.append(job)
                self._changed.notify_all()
            return job.answer

        try:
            yield submit
        finally:
            with self._changed:
                self._num_reserved -= left
                self._changed.notify_all()

    def close(self, timeout_s: float | None = None) -> None:
        """Finish the queue, accept nothing more, and end the thread."""
        with self._changed:
            self._is_closing = True
            self._changed.notify_all()
        self._thread.join(timeout_s)

    def _take(self, count: int) -> None:
        capacity = self.settings.queue
        with self._changed:
            if self._is_closing:
                raise RefusalError(
                    503,
                    "the server is stopping",
                    expected="a server that runs",
                    remedy="Use another server, or retry once this one has restarted",
                    retry_after_s=5,
                )
            if count > capacity:
                raise too_many_inputs(count, capacity)
            if len(self) + count > capacity:
                raise RefusalError(
                    429,
                    f"{len(self)} inputs wait for the model {self.name} already",
                    expected=f"room for {count} more among {capacity}",
                    remedy="Retry after the seconds in Retry-After",
                    retry_after_s=min(max(math.ceil(len(self) * self._seconds_each), 1), LONGEST_RETRY_S),
                )
            self._num_reserved += count

    def _run(self) -> None:
        while batch := self._next_batch():
            wanted = [job for job in batch if job.answer.set_running_or_notify_cancel()]
            if wanted:
                self._answer(wanted)

    def _next_batch(self) -> list[Job]:
        with self._changed:
            while not self._waiting:
                if self._is_closing and not self._num_reserved:
                    return []
                self._changed.wait()
            first = self._waiting[0]
            until = first.since + self.settings.max_wait_ms / 1000
            while first.group is not None and not self._is_closing:
                left = until - time.monotonic()
                if left <= 0 or self._num_joinable(first) >= self._sizes(hash(first.group)).wanted:
                    break  # a larger batch would not pay
                self._changed.wait(left)
            return self._pop(first)

    def _num_joinable(self, first: Job) -> int:
        return sum(job.group == first.group for job in self._waiting)

    def _pop(self, first: Job) -> list[Job]:
        most = 1 if first.group is None else self._sizes(hash(first.group)).choose(self._num_joinable(first))
        batch: list[Job] = []
        left: deque[Job] = deque()
        for job in self._waiting:
            is_taken = job is first or (len(batch) < most and job.group == first.group)
            (batch if is_taken and len(batch) < most else left).append(job)
        self._waiting = left
        return batch

    def _answer(self, jobs: Sequence[Job]) -> None:
        began = time.perf_counter()
        try:
            results = self._compute([job.work for job in jobs])
        except Exception as error:
            if len(jobs) > 1:  # one of them may have failed the whole batch
                log.warning(
                    "a batch of %d for %s failed, each is tried alone: %s", len(jobs), self.name, error
                )
                for job in jobs:
                    self._answer([job])
                return
            log.debug("%s cannot answer: %s", self.name, error)
            results = [error]
        seconds = time.perf_counter() - began
        each = seconds / len(jobs)
        self._seconds_each += (each - self._seconds_each) * (SMOOTHING if self._seconds_each else 1.0)
        if jobs[0].group is not None and not any(isinstance(result, Exception) for result in results):
            self._sizes(hash(jobs[0].group)).add(len(jobs), seconds)
        self._on_batch(len(jobs), seconds)
        for job, result in zip(jobs, results, strict=True):
            if isinstance(result, Exception):
                job.answer.set_exception(result)
            else:
                job.answer.set_result(result)


TRIALS = 5  # batches of each size, whose median time counts
KNOWN = TRIALS - 1  # kept when a size is measured again
RETRIED_AFTER = 200  # batches, after which each size is measured again: the machine's speed may change
GAIN = 0.05  # minimum gain of a larger batch, relative to the time per input
GROUPS_KEPT = 16  # of inputs that are batched together; CLIPs have one per label list


class BatchSizes:
    """Learns from batch times which batch size pays.

    A model that a single input saturates, as most on a CPU, processes inputs one by one, each answered when
    done; one that gains by batching, as on a GPU, takes all that wait.
    """

    def __init__(self, largest: int) -> None:
        powers = (2**power for power in range(largest.bit_length()))
        self.sizes = tuple(sorted({*powers, largest}))
        self._seconds_each: dict[int, deque[float]] = {size: deque(maxlen=TRIALS) for size in self.sizes}
        self._num_batches = 0

    @property
    def wanted(self) -> int:
        """How many inputs an idle model waits for: the maximum, until fewer are known to suffice."""
        if any(len(times) < KNOWN for times in self._seconds_each.values()):
            return self.sizes[-1]
        return self._cheapest(list(self.sizes))

    def choose(self, num_waiting: int) -> int:
        """Return how many waiting inputs to batch, at least one."""
        fitting = [size for size in self.sizes if size <= max(num_waiting, 1)]
        untried = [size for size in fitting if len(self._seconds_each[size]) < TRIALS]
        chosen = max(untried) if untried else self._cheapest(fitting)
        return min(max(num_waiting, 1), self.sizes[-1]) if chosen == fitting[-1] else chosen

    def add(self, size: int, seconds: float) -> None:
        known = max(each for each in self.sizes if each <= size)
        self._seconds_each[known].append(seconds / size)
        self._num_batches += 1
        if self._num_batches % RETRIED_AFTER == 0:
            for times in self._seconds_each.values():
                if len(times) == TRIALS:
                    times.popleft()

    def _cheapest(self, sizes: list[int]) -> int:
        """Return the smallest size whose time per input is within the gain of the best."""
        usual = {size: median(self._seconds_each[size]) for size in sizes}
        enough = min(usual.values()) * (1 + GAIN)
        return next(size for size in sizes if usual[size] <= enough)


def sizes_by_group(largest: int) -> Callable[[int], BatchSizes]:
    """Return a function to the batch sizes of a group by its hash, as a group may be as long as a request.

    A wide beam differs from a narrow one. The least recently used groups are forgotten.
    """
    return lru_cache(GROUPS_KEPT)(lambda group: BatchSizes(largest))
