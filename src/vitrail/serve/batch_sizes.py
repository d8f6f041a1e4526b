"""Adaptive batch sizes: no larger than what reduces the time per input."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Hashable
from statistics import median

TRIALS = 5  # batches of each size, whose median time counts
KNOWN = TRIALS - 1  # kept when a size is measured again
RETRIED_AFTER = 200  # batches, after which each size is measured again: the machine's speed may change
GAIN = 0.05  # minimum gain of a larger batch, relative to the time per input
GROUPS_KEPT = 16  # of inputs that are batched together; CLIPs have one per label list


class BatchSizes:
    """Learns from batch times which batch size pays.

    A model that a single input saturates, as most on a CPU, processes inputs one by one, each answered when
    done; one that gains by batching, as on a GPU, takes all that wait.

    Args:
        largest: maximum batch size.
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


class SizesByGroup:
    """Batch sizes per group of inputs, as a wide beam differs from a narrow one.

    Args:
        largest: maximum batch size.
    """

    def __init__(self, largest: int) -> None:
        self.largest = largest
        # By hash, as a group may be as long as a request.
        self._sizes: OrderedDict[int, BatchSizes] = OrderedDict()

    def of(self, group: Hashable) -> BatchSizes:
        """Return the sizes of a group; the least recently used groups are dropped."""
        key = hash(group)
        if key not in self._sizes:
            self._sizes[key] = BatchSizes(self.largest)
            if len(self._sizes) > GROUPS_KEPT:
                self._sizes.popitem(last=False)
        self._sizes.move_to_end(key)
        return self._sizes[key]
