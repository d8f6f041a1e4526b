from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from vitrail.engines.cpu.linear import FastLinear as Linear
from vitrail.engines.cpu.linear import linear, packed_linear


@pytest.fixture(autouse=True)
def _small_products_take_onednn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vitrail.engines.cpu.linear.MIN_ONEDNN_PRODUCT", 0)
    monkeypatch.setattr("vitrail.engines.cpu.linear.MKL_IS_FAST", False)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("shape", [(5,), (2, 5), (2, 3, 5)])
def test_both_kernels_compute_the_same(shape, bias):
    layer, x = Linear(5, 7, bias=bias), torch.randn(*shape)
    with_gradients = layer(x)
    with torch.no_grad():
        without = layer(x)

    assert torch.equal(with_gradients, F.linear(x, layer.weight, layer.bias))
    torch.testing.assert_close(without, with_gradients, rtol=1e-5, atol=1e-6)  # other order of sums


def test_views_that_are_not_contiguous_are_read_rightly():
    x, weight = torch.randn(2, 5, 3).transpose(1, 2), torch.randn(14, 5)[::2]
    with torch.no_grad():
        torch.testing.assert_close(linear(x, weight), F.linear(x, weight), rtol=1e-5, atol=1e-6)


def test_other_types_keep_their_type():
    x = torch.randn(2, 5)
    with torch.no_grad():
        assert Linear(5, 7).double()(x.double()).dtype == torch.float64
        with torch.autocast("cpu", torch.bfloat16):
            assert Linear(5, 7)(x).dtype == torch.bfloat16


def test_the_weights_are_those_of_the_layer_of_torch():
    assert isinstance(Linear(5, 7), nn.Linear)
    assert Linear(5, 7).state_dict().keys() == nn.Linear(5, 7).state_dict().keys()


def test_small_products_are_left_to_pytorch(monkeypatch):
    monkeypatch.setattr("vitrail.engines.cpu.linear.MIN_ONEDNN_PRODUCT", 3 * 5 * 7 + 1)
    layer, x = Linear(5, 7), torch.randn(3, 5)
    with torch.no_grad():
        assert torch.equal(layer(x), F.linear(x, layer.weight, layer.bias))


@pytest.mark.parametrize("bias", [True, False])
def test_a_packed_product_is_the_same_for_any_number_of_rows_and_follows_its_weight(bias):
    layer = Linear(5, 7, bias=bias)
    for shape in ((9, 5), (1, 5), (2, 3, 5)):
        x = torch.randn(*shape)
        with torch.no_grad():
            layer.weight.add_(1)  # in place, as an optimiser does
            wanted = F.linear(x, layer.weight, layer.bias)
            for _ in range(2):
                packed = packed_linear(x, layer.weight, layer.bias)
                torch.testing.assert_close(packed, wanted, rtol=1e-5, atol=1e-6)


def test_a_packed_product_is_left_to_pytorch_where_it_is_narrow():
    weight, x = torch.randn(7, 5), torch.randn(2, 5)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        assert packed_linear(x, weight).dtype == torch.bfloat16
    with torch.inference_mode():
        made_here = weight + 1  # has no version to watch
        torch.testing.assert_close(packed_linear(x, made_here), x @ made_here.T, rtol=1e-5, atol=1e-6)
