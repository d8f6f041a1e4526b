from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch

from vitrail.core.errors import ConfigError
from vitrail.interpret.heads import attention_distance, head_entropy
from vitrail.interpret.rollout import attention_rollout, read_queries


def random_layers(num_layers: int, tokens: int = 7, heads: int = 3, batch: int = 2) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(5)
    return [
        torch.randn(batch, heads, tokens, tokens, generator=generator).softmax(-1) for _ in range(num_layers)
    ]


def test_rollout_equals_a_product_written_in_numpy() -> None:
    layers = random_layers(3)

    result = attention_rollout(layers)

    for sample in range(2):
        expected = np.eye(7)
        for weights in layers:
            mean = weights[sample].double().numpy().mean(axis=0)
            expected = (mean + np.eye(7)) / 2 @ expected
        np.testing.assert_allclose(result[sample].numpy(), expected, atol=1e-6)


def test_rows_sum_to_one_and_identity_rolls_out_to_identity() -> None:
    result = attention_rollout(random_layers(5))
    torch.testing.assert_close(result.sum(-1), torch.ones(2, 7))

    identity = torch.eye(5).expand(2, 3, 5, 5)
    torch.testing.assert_close(attention_rollout([identity] * 4)[0], torch.eye(5))


def test_rollout_follows_a_chain_of_attention_to_its_source() -> None:
    # Token 0 reads 1 in the last layer, and 1 read 2 in the first: part of 0 must stem from 2.
    first, last = torch.eye(3), torch.eye(3)
    first[1] = torch.tensor([0.0, 0.0, 1.0])
    last[0] = torch.tensor([0.0, 1.0, 0.0])

    result = attention_rollout([first[None, None], last[None, None]])[0]

    torch.testing.assert_close(result[0], torch.tensor([0.5, 0.25, 0.25]))
    assert not torch.allclose(result, attention_rollout([last[None, None], first[None, None]])[0])


LAYER = random_layers(1)[0]


@pytest.mark.parametrize(
    ("refused", "message"),
    [
        (lambda: attention_rollout([LAYER[:, :, :1]]), "every query"),
        (lambda: attention_rollout([LAYER, random_layers(1, tokens=5)[0]]), "same tokens"),
        (lambda: attention_rollout([]), "no attention was recorded"),
        (lambda: read_queries(torch.rand(2, 6, 6), "class", 0), "no class token"),
    ],
)
def test_what_cannot_be_rolled_out_or_read_is_refused(refused: Callable[[], object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        refused()


def test_class_reader_takes_the_first_row_and_mean_leaves_prefix_out() -> None:
    attention = random_layers(1)[0].mean(1)

    torch.testing.assert_close(read_queries(attention, "class", 1), attention[:, 0])
    torch.testing.assert_close(read_queries(attention, "mean", 1), attention[:, 1:].mean(1))


def test_attending_to_oneself_has_distance_zero_and_to_the_right_one_patch() -> None:
    same = torch.eye(6)
    right = torch.zeros(6, 6)
    for row in range(2):
        for column in range(3):
            right[row * 3 + column, row * 3 + (column + 1 if column < 2 else 1)] = 1
    weights = torch.stack([same, right])[None]

    distance = attention_distance(weights, (2, 3), 0, patch_size=(7, 5))

    torch.testing.assert_close(distance, torch.tensor([[0.0, 5.0]]))


def test_attention_to_the_class_token_does_not_shorten_distance() -> None:
    patches = torch.tensor([[0.0, 1.0], [1.0, 0.0]])
    weights = torch.full((3, 3), 0.5)
    weights[1:, 1:] = 0.5 * patches

    torch.testing.assert_close(attention_distance(weights[None, None], (1, 2), 1), torch.tensor([[1.0]]))


def test_entropy_runs_from_zero_to_log_of_keys() -> None:
    weights = torch.stack([torch.eye(5), torch.full((5, 5), 0.2)])[None]

    torch.testing.assert_close(head_entropy(weights), torch.tensor([[0.0, math.log(5)]]))


def test_queries_on_a_finer_grid_look_from_their_own_places() -> None:
    weights = torch.zeros(1, 1, 4, 2)
    weights[..., 0] = 1  # four queries in a row, all of them look at the left one of two keys

    distance = attention_distance(weights, (1, 2), 0, patch_size=(8, 8), query_grid=(1, 4))

    torch.testing.assert_close(distance, torch.tensor([[(2.0 + 2.0 + 6.0 + 10.0) / 4]]))
