"""How many inputs to compute at once: no more than make an input cheaper, so that nobody waits in vain."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Hashable
from statistics import median

TRIALS = 5  # batches of each size whose median time counts
KNOWN = TRIALS - 1  # of them are left when a size is to be tried once more
RETRIED_AFTER = 200  # batches, after which each size is tried once more: a machine may change
GAIN = 0.05  # a larger batch must make an input cheaper by more than this
GROUPS_KEPT = 16  # of inputs that are computed together; CLIPs have one for each list of names


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

    @property
    def wanted(self) -> int:
        """How many inputs an idle model waits for: as many as a batch takes, until fewer are known to do."""
        if any(len(times) < KNOWN for times in self._seconds_each.values()):
            return self.sizes[-1]
        return self._cheapest(list(self.sizes))

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
                if len(times) == TRIALS:
                    times.popleft()

    def _cheapest(self, sizes: list[int]) -> int:
        """Return the least size whose inputs cost no more than those of the best by more than the gain."""
        usual = {size: median(self._seconds_each[size]) for size in sizes}
        enough = min(usual.values()) * (1 + GAIN)
        return next(size for size in sizes if usual[size] <= enough)


class SizesByGroup:
    """The sizes of each group of inputs, while it is asked for: a wide beam has others than a narrow one.

    Args:
        largest: most inputs of a batch.
    """

    def __init__(self, largest: int) -> None:
        self.largest = largest
        # By their hash, since a group may be a text as long as a request.
        self._sizes: OrderedDict[int, BatchSizes] = OrderedDict()

    def of(self, group: Hashable) -> BatchSizes:
        """Return the sizes of a group; of too many, those that were asked for longest ago are forgotten."""
        key = hash(group)
        if key not in self._sizes:
            self._sizes[key] = BatchSizes(self.largest)
            if len(self._sizes) > GROUPS_KEPT:
                self._sizes.popitem(last=False)
        self._sizes.move_to_end(key)
        return self._sizes[key]
