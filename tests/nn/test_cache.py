from __future__ import annotations

import math

import torch

from vitrail.nn.cache import FIRST_CAPACITY, KeyValueCache

CPU = torch.device("cpu")


def draw(cache: KeyValueCache) -> torch.Tensor:
    """Return keys and values for the newest tokens of a cache, 3 heads of 5."""
    return torch.randn(2, cache.num_sentences, 3, cache.num_hypotheses, 5)


def seen(cache: KeyValueCache, sentence: int, hypothesis: int) -> list[int]:
    """Return the slots that a hypothesis sees."""
    if cache.bias is None:
        return list(range(cache.num_slots))
    return cache.bias[sentence, 0, hypothesis].isfinite().nonzero()[:, 0].tolist()


def test_what_is_written_is_read_in_order_layer_by_layer():
    cache = KeyValueCache.empty(2, num_layers=2)
    written: list[list[torch.Tensor]] = [[], []]
    for _ in range(3):
        cache = cache.lengthened(device=CPU)
        for layer in range(2):
            newest = draw(cache)
            written[layer].append(newest)
            keys, values = cache.write(layer, *newest)
            assert torch.equal(torch.stack((keys, values)), torch.cat(written[layer], dim=-2))
    assert cache.bias is None
    assert (cache.num_rows, cache.num_steps, cache.num_slots) == (2, 3, 3)


def test_more_than_the_first_room_is_moved_to_larger_room():
    cache = KeyValueCache.empty(1, num_layers=1)
    written = []
    for _ in range(2 * FIRST_CAPACITY + 1):
        cache = cache.lengthened(device=CPU)
        written.append(draw(cache))
        keys, _ = cache.write(0, *written[-1])
    assert torch.equal(keys, torch.cat(written, dim=-2)[0])


def test_hypotheses_see_what_they_share_and_what_is_their_own():
    cache = KeyValueCache.empty(1, num_layers=1).lengthened(device=CPU)  # slot 0
    cache.write(0, *draw(cache))
    cache = cache.expand(2)
    assert [seen(cache, 0, row) for row in range(2)] == [[0], [0]]

    cache = cache.lengthened(device=CPU)  # slots 1 and 2
    cache.write(0, *draw(cache))
    assert [seen(cache, 0, row) for row in range(2)] == [[0, 1], [0, 2]]

    cache = cache.select(torch.tensor([1, 1])).lengthened(device=CPU)  # slots 3 and 4
    assert [seen(cache, 0, row) for row in range(2)] == [[0, 2, 3], [0, 2, 4]]
    assert cache.bias.unique().tolist() == [-math.inf, 0.0]


def test_equal_hypotheses_see_the_same_after_they_parted_from_others():
    cache = KeyValueCache.empty(1, num_layers=1).expand(2).lengthened(device=CPU).expand(2)
    assert [seen(cache, 0, row) for row in range(4)] == [[0], [0], [1], [1]]
    fewer = cache.select(torch.tensor([3]))
    assert (fewer.num_hypotheses, seen(fewer, 0, 0)) == (1, [1])


def test_selecting_moves_no_key():
    cache = KeyValueCache.empty(2, num_layers=1).expand(2).lengthened(device=CPU)
    cache.write(0, *draw(cache))
    assert cache.select(torch.tensor([1, 0, 3, 3])).storage is cache.storage


def test_kept_sentences_keep_their_keys_in_the_order_asked_for():
    cache = KeyValueCache.empty(3, num_layers=1).expand(2).lengthened(device=CPU)
    newest = draw(cache)
    cache.write(0, *newest)
    cache = cache.select(torch.tensor([1, 0, 2, 2, 4, 5]))

    kept = cache.keep(torch.tensor([2, 0]))

    assert kept.num_rows == 4
    for tensor, written in zip(kept.storage.tensors, newest, strict=True):
        assert torch.equal(tensor[0, :, :, :2], written[[2, 0]])
    assert [seen(kept, 1, row) for row in range(2)] == [[1], [0]]


def test_two_ways_on_from_one_cache_do_not_write_over_each_other():
    start = KeyValueCache.empty(1, num_layers=1).lengthened(device=CPU)
    first = draw(start)
    start.write(0, *first)
    one, two = start.lengthened(device=CPU), start.lengthened(device=CPU)
    newest = draw(one), draw(two)
    keys, _ = one.write(0, *newest[0])
    others, _ = two.write(0, *newest[1])
    assert torch.equal(keys, torch.cat((first, newest[0]), dim=-2)[0])
    assert torch.equal(others, torch.cat((first, newest[1]), dim=-2)[0])


def test_a_bias_of_steps_is_spread_over_their_slots():
    cache = KeyValueCache.empty(1, num_layers=1).lengthened(device=CPU)
    cache.write(0, *draw(cache))
    bias = torch.tensor([[[[7.0, 8.0, 9.0]]]])
    cache = cache.expand(2).lengthened(device=CPU)
    cache.write(0, *draw(cache))
    cache = cache.select(torch.tensor([0])).lengthened(device=CPU)
    assert cache.spread(bias).flatten().tolist() == [7.0, 8.0, 8.0, 9.0]
    alone = KeyValueCache.empty(1, num_layers=1).lengthened(device=CPU)
    assert alone.spread(bias[..., :1]).flatten().tolist() == [7.0]


def test_keys_and_values_of_different_widths_keep_their_own():
    cache, written = KeyValueCache.empty(2, num_layers=1), []
    for _ in range(FIRST_CAPACITY + 3):  # more than the first room
        cache = cache.lengthened(device=CPU)
        newest = torch.randn(2, 3, 1, 4), torch.randn(2, 3, 1, 7)
        written.append(newest)
        keys, values = cache.write(0, *newest)
    assert torch.equal(keys, torch.cat([each[0] for each in written], dim=-2))
    assert torch.equal(values, torch.cat([each[1] for each in written], dim=-2))


def test_a_layer_may_remember_values_alone():
    cache = KeyValueCache.empty(1, num_layers=1).lengthened(device=CPU)
    keys, values = cache.write(0, torch.randn(1, 2, 1, 0), torch.ones(1, 2, 1, 3))
    assert (keys.shape, values.shape) == ((1, 2, 1, 0), (1, 2, 1, 3))
