from __future__ import annotations

import pytest
import torch
from torch import nn

from vitrail.interpret.record import record_attention
from vitrail.nn.context import ContextAttention
from vitrail.nn.masks import padding_mask

SCORES = ["scaled_dot", "dot", "general", "additive"]


def context_layer(name: str) -> ContextAttention:
    layer = ContextAttention(4, 4 if "dot" in name else 6, score=name)
    for parameter in layer.parameters():
        nn.init.normal_(parameter)
    return layer


@pytest.mark.parametrize("name", SCORES)
def test_context_attention_follows_the_papers(name):
    layer = context_layer(name)
    query, context = torch.randn(2, 3, 4), torch.randn(2, 5, 4 if "dot" in name else 6)
    scores = torch.zeros(2, 3, 5)
    for b in range(2):
        for i in range(3):
            for j in range(5):
                s, h = query[b, i], context[b, j]
                if name == "additive":
                    hidden = layer.query_projection.weight @ s + layer.key_projection.weight @ h
                    scores[b, i, j] = layer.score.weight[0] @ hidden.tanh()
                elif name == "general":
                    scores[b, i, j] = s @ (layer.key_projection.weight @ h)
                else:
                    scores[b, i, j] = s @ h / (2 if name == "scaled_dot" else 1)

    with record_attention(layer) as maps:
        out = layer(query, layer.remember(context))

    torch.testing.assert_close(maps[0].weights[:, 0], scores.softmax(-1), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(out, scores.softmax(-1) @ context, rtol=1e-4, atol=1e-5)
    assert maps[0].kind == "cross"


@pytest.mark.parametrize("name", SCORES)
def test_steps_one_by_one_equal_all_at_once_and_do_not_see_padding(name):
    layer = context_layer(name)
    query, context = torch.randn(2, 3, 4), torch.randn(2, 5, 4 if "dot" in name else 6)
    may_attend = padding_mask(torch.tensor([2, 5]), 5)
    together = layer(query, layer.remember(context), may_attend=may_attend)
    context[0, 2:] = 7.0
    memory = layer.remember(context)
    apart = [layer(query[:, [step]], memory, may_attend=may_attend) for step in range(3)]
    torch.testing.assert_close(torch.cat(apart, dim=1), together, rtol=1e-5, atol=1e-6)


def test_context_attention_over_an_image_records_its_grid():
    layer = ContextAttention(4, 6)
    with record_attention(layer) as maps:
        layer(torch.randn(1, 1, 4), layer.remember(torch.randn(1, 15, 6)), grid=(3, 5))
    assert maps[0].grid == (3, 5)
    assert maps[0].query_grid is None
