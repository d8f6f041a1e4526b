from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from vitrail.models import MODELS, build
from vitrail.models.cost import count_forward, count_parameters
from vitrail.nn.attention import Attention


def on_meta(make, *shape):
    with torch.device("meta"):
        return make().eval(), torch.zeros(*shape)


def test_products_memory_and_parts_of_two_layers_are_those_counted_by_hand():
    model, x = on_meta(lambda: nn.Sequential(nn.Linear(10, 1000), nn.Linear(1000, 3, bias=False)), 7, 10)

    cost = count_forward(model, x, {"first": [model[0]], "second": [model[1]]})

    assert cost.parts["first"] == (7 * 10 * 1000, 7 * 1000)
    assert cost.parts["second"] == (7 * 1000 * 3, 7 * 3)
    parameters, together = 10 * 1000 + 1000 + 1000 * 3, 7 * 10 + 7 * 1000 + 7 * 3
    assert cost.peak_bytes == 4 * (parameters + together)


def test_what_has_ended_makes_room():
    class Growing(nn.Module):
        def forward(self, x):
            for _ in range(5):
                x = x + 1  # two of them live at a time
            return x

    model, x = on_meta(Growing, 1000)
    assert count_forward(model, x, {}).peak_bytes == 4 * 3 * 1000


def test_fused_attention_writes_its_result_alone():
    class Attending(nn.Module):
        def forward(self, x):
            return F.scaled_dot_product_attention(x, x, x)

    model, x = on_meta(Attending, 2, 3, 500, 4)
    cost = count_forward(model, x, {})
    assert cost.parts[""] == (2 * 3 * 500 * 500 * 8, x.numel())
    assert cost.peak_bytes == 4 * 2 * x.numel()


def test_a_recurrent_layer_is_one_operation():
    model, x = on_meta(lambda: nn.LSTM(5, 3, bidirectional=True, batch_first=True), 2, 7, 5)
    cost = count_forward(model, x, {})
    assert cost.parts[""] == (2 * 7 * 2 * 4 * 3 * (5 + 3), 2 * 7 * 6)


@pytest.mark.parametrize("score", ["scaled_dot", "additive"])
def test_the_size_of_attention_is_read_and_the_taps_are_taken_away(score):
    model, x = on_meta(lambda: Attention(6, 2, score=score), 1, 5, 6)
    (size,) = count_forward(model, x, {}).attention
    assert (size.heads, size.windows, size.queries, size.keys) == (2, 1, 5, 5)
    assert size.elements == size.global_elements == 25
    assert model.tap is None


@pytest.mark.parametrize("name", ["vit_nano", "swin_t", "mixer_s32", "resnet18"])
def test_the_estimate_of_memory_is_near_what_the_allocator_gives(name):
    changes = {"image_size": (32, 32), "num_classes": 3} if name == "vit_nano" else {}
    with torch.device("meta"):
        model = build(name, **changes).eval()
    images = torch.zeros(1, 3, *model.config.image_size, device="meta")
    weights = sum(t.nbytes for t in [*model.parameters(), *model.buffers()])
    estimated = count_forward(model, images, {}).peak_bytes - weights

    real, images = build(name, **changes).eval(), torch.zeros(images.shape)
    with torch.no_grad():
        real(images)
        with torch.profiler.profile(profile_memory=True) as profile:
            real(images)
    live = peak = images.nbytes
    for event in profile.profiler.kineto_results.events():
        if event.name() == "[memory]":
            live += event.nbytes()
            peak = max(peak, live)

    assert estimated <= 1.05 * peak
    if name != "resnet18":  # the CPU's convolutions take a reordered copy of weights and activations on top
        assert estimated >= 0.7 * peak


@pytest.mark.parametrize("name", ["vit_s32", "swinv2_t", "mvitv2_t", "efficientnet_b0", "sequencer2d_s"])
def test_parameters_counted_without_values_are_those_of_the_model(name):
    with torch.device("meta"):
        expected = sum(parameter.numel() for parameter in build(name).parameters())
    assert count_parameters(MODELS[name].build) == expected
    assert torch.zeros(1).item() == 0
