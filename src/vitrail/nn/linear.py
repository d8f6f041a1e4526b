"""The linear layer, by the faster of two kernels where a processor infers in float32."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

# Multiplications below which calling oneDNN's kernel, some 12 us, costs more than its product saves. MKL /
# oneDNN in us of one AMD EPYC core, 128 to 384 channels: 1 row 6 / 20, 5 rows 14 / 26; 128 to 128: 64 rows
# 25 / 37; 128 to 10,000: 1 row 152 / 109, 5 rows 432 / 374; 512 to 1536: 5 rows 213 / 173.
MIN_ONEDNN_PRODUCT = 2**20


class Linear(nn.Linear):
    """A linear layer whose product takes oneDNN where gradients are off on a processor in float32.

    PyTorch gives float32 products to MKL, which is slow on processors of other makers: on an AMD EPYC whole
    models ran 1.06 to 1.15 times as fast by oneDNN (docs/log.md). Elsewhere the layer is PyTorch's, and its
    weights are so everywhere. The results of both differ by rounding.
    """

    def forward(self, x: Float[Tensor, "*batch in_dim"]) -> Float[Tensor, "*batch out_dim"]:
        """Return ``x weight^T + bias``."""
        return linear(x, self.weight, self.bias)


def linear(
    x: Float[Tensor, "*batch in_dim"],
    weight: Float[Tensor, "out_dim in_dim"],
    bias: Float[Tensor, " out_dim"] | None = None,
) -> Float[Tensor, "*batch out_dim"]:
    """Return ``x weight^T + bias``, as ``Linear`` does.

    Args:
        x: one row for each product.
        weight: one row for each output.
        bias: added to each row of the result.
    """
    if _takes_onednn(x, weight):
        return torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")
    return F.linear(x, weight, bias)


def _takes_onednn(x: Tensor, weight: Tensor) -> bool:
    return (
        not torch.is_grad_enabled()
        and x.device.type == "cpu"
        and x.dtype == weight.dtype == torch.float32
        and not torch.compiler.is_compiling()  # the compiler chooses kernels itself, and exports need its own
        and not torch.is_autocast_enabled("cpu")
        and x.numel() * weight.shape[0] >= MIN_ONEDNN_PRODUCT
        and torch.backends.mkldnn.is_available()
    )
