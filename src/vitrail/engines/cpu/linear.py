"""Linear layers by the faster of MKL and oneDNN for float32 inference on a CPU."""

from __future__ import annotations

import platform

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor
from torch.utils.weak import WeakIdKeyDictionary

from vitrail.nn.linear import Linear
from vitrail.train.machine import cpu_facts

# Multiplications below which calling oneDNN's kernel, some 12 us, costs more than it saves (docs/log.md).
MIN_ONEDNN_PRODUCT = 2**20
Rows = Float[Tensor, "*batch in_dim"]
NewRows = Float[Tensor, "*batch out_dim"]
Weight = Float[Tensor, "out_dim in_dim"]
Bias = Float[Tensor, " out_dim"] | None
_PACKED = WeakIdKeyDictionary()  # from a weight to its version and its packed copy


MKL_IS_FAST = "intel" in (cpu_facts().get("vendor_id") or platform.processor()).lower()
"""Whether float32 products stay with MKL: on Intel's CPUs, oneDNN ran ViT-S and ViT-B no faster."""


class FastLinear(Linear):
    """A linear layer that uses oneDNN for float32 inference on a CPU.

    PyTorch gives float32 products to MKL, which is slow on other makers' CPUs: on an AMD EPYC whole models
    ran 1.06 to 1.15 times as fast with oneDNN (docs/log.md). Results differ by rounding.
    """

    def forward(self, x: Rows) -> NewRows:
        return linear(x, self.weight, self.bias)

    def part(self, x: Rows, start: int, stop: int) -> Float[Tensor, "*batch part_dim"]:
        return linear(x, self.weight[start:stop], None if self.bias is None else self.bias[start:stop])


def linear(x: Rows, weight: Weight, bias: Bias = None) -> NewRows:
    """Return ``x weight^T + bias``, by the faster kernel."""
    if _takes_onednn(x, weight):
        return torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")
    return F.linear(x, weight, bias)


def packed_linear(x: Rows, weight: Weight, bias: Bias = None) -> NewRows:
    """As ``linear``, for a large weight that is used often: it is packed in oneDNN's layout once.

    The kernel otherwise repacks the weight at every call: of 128 to 8,000, a fifth of the time with 64 rows
    and half of it with 8 (docs/log.md). The copy lives as long as the weight, until the weight changes.
    """
    if not _takes_onednn(x, weight) or weight.is_inference():  # such a weight has no version
        return linear(x, weight, bias)
    version, packed = _PACKED.get(weight, (None, None))
    if version != weight._version:
        packed = torch.ops.mkldnn._reorder_linear_weight(weight.detach(), x.shape[:-1].numel())
        _PACKED[weight] = weight._version, packed
    return torch.ops.mkldnn._linear_pointwise(x, packed, bias, "none", [], "")


def _takes_onednn(x: Tensor, weight: Tensor) -> bool:
    return (
        not torch.is_grad_enabled()
        and not torch.compiler.is_compiling()  # the compiler chooses kernels itself, and exports need its own
        and not MKL_IS_FAST
        and x.numel() * weight.shape[0] >= MIN_ONEDNN_PRODUCT
        and x.device.type == "cpu"
        and x.dtype == weight.dtype == torch.float32
        and not torch.is_autocast_enabled("cpu")
        and torch.backends.mkldnn.is_available()
    )
