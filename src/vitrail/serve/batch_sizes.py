"""How many inputs to compute at once: no more than make an input cheaper, so that nobody waits in vain."""

from __future__ import annotations

from collections import deque
from statistics import median

TRIALS = 5  # batches of each size whose median time counts
RETRIED_AFTER = 200  # batches, after which each size is tried once more: a machine may change
GAIN = 0.05  # a larger batch must make an input cheaper by more than this


class BatchSizes:
    """Learn from the times of batches which size is worth it.

    A model that a single input keeps busy, as most on a processor, computes one after the other, and each is
    answered when it is done; one that gains by batches, as on a GPU or a small one, takes all that wait.

    Args:
        largest: most inputs of a batch.
    """

    def __init__(self, largest: int) -> None:
        powers = (2**power for power in range(largest.bit_length()))
        self.sizes = tuple(sorted({*powers, largest}))
        self._seconds_each: dict[int, deque[float]] = {size: deque(maxlen=TRIALS) for size in self.sizes}
        self._num_batches = 0

    def choose(self, num_waiting: int) -> int:
        """Return how many of those that wait to compute together, at least one."""
        fitting = [size for size in self.sizes if size <= max(num_waiting, 1)]
        untried = [size for size in fitting if len(self._seconds_each[size]) < TRIALS]
        chosen = max(untried) if untried else self._cheapest(fitting)
        return min(max(num_waiting, 1), self.sizes[-1]) if chosen == fitting[-1] else chosen

    def add(self, size: int, seconds: float) -> None:
        """Take note of the seconds that a batch took."""
        known = max(each for each in self.sizes if each <= size)
        self._seconds_each[known].append(seconds / size)
        self._num_batches += 1
        if self._num_batches % RETRIED_AFTER == 0:
            for times in self._seconds_each.values():
                if times:
                    times.popleft()

    def _cheapest(self, sizes: list[int]) -> int:
        """Return the least size whose inputs cost no more than those of the best by more than the gain."""
        usual = {size: median(self._seconds_each[size]) for size in sizes}
        enough = min(usual.values()) * (1 + GAIN)
        return next(size for size in sizes if usual[size] <= enough)
