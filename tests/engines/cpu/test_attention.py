"""Plain products and the fused kernel agree, and each is taken where it is faster."""

from __future__ import annotations

import pytest
import torch

from vitrail.engines.cpu import attention as attention_kernels
from vitrail.engines.cpu.attention import attend
from vitrail.nn import attention
from vitrail.nn.masks import causal_mask


def _query_key_value(queries: int = 5, keys: int = 7, dtype: torch.dtype = torch.float32):
    shapes = ((2, 3, queries, 4), (2, 3, keys, 4), (2, 3, keys, 5))
    return [torch.randn(shape, dtype=dtype) for shape in shapes]


@pytest.mark.parametrize("masked", [False, True])
def test_plain_products_in_bfloat16_agree_with_the_fused_kernel(masked, monkeypatch):
    tensors = [tensor.requires_grad_() for tensor in _query_key_value(7, 7, torch.bfloat16)]
    may_attend = causal_mask(7) if masked else None
    results = {}
    for limit in (0, attention_kernels.PLAIN_MAX_TOKENS):
        monkeypatch.setattr(attention_kernels, "PLAIN_MAX_TOKENS", limit)
        out = attend(*tensors, may_attend=may_attend)
        results[limit] = (out, *torch.autograd.grad(out.float().square().sum(), tensors))

    for fused, plain in zip(*results.values(), strict=True):
        assert plain.dtype == torch.bfloat16
        torch.testing.assert_close(plain.float(), fused.float(), rtol=0.05, atol=0.05)  # 8 bits of mantissa


@pytest.mark.parametrize("has_tiles", [False, True])
def test_bfloat16_on_a_cpu_takes_the_plain_products_and_traces_do_not(has_tiles, monkeypatch):
    calls = []
    monkeypatch.setattr(attention_kernels, "FUSED_USES_TILES", has_tiles)
    original = attention.attention_weights
    monkeypatch.setattr(
        attention, "attention_weights", lambda *a, **k: (calls.append(1), original(*a, **k))[1]
    )
    query, key, value = _query_key_value(dtype=torch.bfloat16)

    attend(query, key, value)  # as a trace does: with gradients on, of which none is asked for
    assert not calls
    attend(query.requires_grad_(), key, value)
    assert len(calls) == 1
    with torch.no_grad():
        attend(query, key, value)
        assert len(calls) == (1 if has_tiles else 2)
        monkeypatch.setattr(attention_kernels, "PLAIN_MAX_TOKENS_INFERRED", 0)
        attend(query, key, value)
    attend(query.float(), key.float(), value.float())
    assert len(calls) == (1 if has_tiles else 2)


def test_dropped_weights_keep_the_expected_value():
    query, key, value = _query_key_value(dtype=torch.bfloat16)
    value = torch.ones_like(value).requires_grad_()
    kept = torch.stack([attend(query.requires_grad_(), key, value, dropout=0.25) for _ in range(200)])
    assert kept.float().mean().item() == pytest.approx(1.0, abs=0.02)
    assert kept.float().std() > 0.1
