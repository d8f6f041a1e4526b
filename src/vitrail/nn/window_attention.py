"""Window attention: scaled dot products (Swin) and cosines (Swin V2)."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from vitrail.nn.attention import Tap, TokenGrids, attend
from vitrail.nn.linear import Linear
from vitrail.nn.windows import Grid, Windows, fit_windows, window_cells, window_mask

INITIAL_SCALE = 10.0  # Liu et al. 2022 (Swin V2), published code
MAX_SCALE = 100.0  # Liu et al. 2022 (Swin V2), section 3.2: the temperature is at least 0.01
MIN_NORM = 1e-12  # avoids division by zero


class WindowAttention(nn.Module):
    """Attend inside windows, with a relative position bias.

    Args:
        windows: of the native grid; its size is the maximum.
        shifted: whether the windows are shifted where more than one is needed.
        bias: from a window's rows and columns to the bias of each pair of its tokens.

    Paper: Liu et al. 2021 (Swin), equation 4 and section 3.2.
    """

    attend = staticmethod(attend)

    mask: Tensor | None
    tap: Tap | None

    def __init__(
        self,
        dim: int,
        num_heads: int,
        *,
        windows: Windows,
        shifted: bool,
        bias: nn.Module,
        qkv_bias: bool = True,
    ) -> None:
        super().__init__()
        assert dim % num_heads == 0, f"{num_heads} heads do not divide {dim} channels"
        self.num_heads, self.windows, self.shifted = num_heads, windows, shifted
        self.qkv = Linear(dim, 3 * dim, bias=qkv_bias)
        self.relative_bias = bias
        self.projection = Linear(dim, dim)
        self.register_buffer("mask", window_mask(windows), persistent=False)
        self.tap = None

    def forward(
        self, x: Float[Tensor, "batch tokens dim"], *, may_attend: None = None, grid: Grid | None = None
    ) -> Float[Tensor, "batch tokens dim"]:
        """Return new tokens.

        Args:
            x: window by window, as ``window_order``.
            may_attend: always None: windows make their own mask.
            grid: rows and columns of the image's tokens.
        """
        windows = _fit(self, grid)
        qkv = self.qkv(x).reshape(-1, windows.num_tokens, 3, self.num_heads, x.shape[-1] // self.num_heads)
        query, key, value = qkv.permute(2, 0, 3, 1, 4).unbind()  # windows heads tokens d, each
        mixed = _attend(self, windows, query, key, value, scale=None)
        return self.projection(mixed.reshape(x.shape))


class CosineWindowAttention(nn.Module):
    """Attend inside windows by the cosine of query and key over a learned temperature.

    Arguments are those of ``WindowAttention``; keys have no bias.

    Paper: Liu et al. 2022 (Swin V2), equation 2.
    """

    attend = staticmethod(attend)
    linear = staticmethod(F.linear)

    mask: Tensor | None
    tap: Tap | None

    def __init__(
        self,
        dim: int,
        num_heads: int,
        *,
        windows: Windows,
        shifted: bool,
        bias: nn.Module,
        qkv_bias: bool = True,
    ) -> None:
        super().__init__()
        assert dim % num_heads == 0, f"{num_heads} heads do not divide {dim} channels"
        self.num_heads, self.windows, self.shifted = num_heads, windows, shifted
        self.qkv = Linear(dim, 3 * dim, bias=False)
        self.query_bias = nn.Parameter(torch.zeros(dim)) if qkv_bias else None
        self.value_bias = nn.Parameter(torch.zeros(dim)) if qkv_bias else None
        self.log_scale = nn.Parameter(torch.full((num_heads,), math.log(INITIAL_SCALE)))
        self.relative_bias = bias
        self.projection = Linear(dim, dim)
        self.register_buffer("mask", window_mask(windows), persistent=False)
        self.tap = None

    def forward(
        self, x: Float[Tensor, "batch tokens dim"], *, may_attend: None = None, grid: Grid | None = None
    ) -> Float[Tensor, "batch tokens dim"]:
        windows = _fit(self, grid)
        qkv = self.linear(x, self.qkv.weight, self._qkv_bias())
        qkv = qkv.reshape(-1, windows.num_tokens, 3, self.num_heads, x.shape[-1] // self.num_heads)
        value = qkv[:, :, 2].transpose(1, 2)  # windows heads tokens d
        query, key = self._normalise(qkv[:, :, :2]).permute(2, 0, 3, 1, 4).unbind()
        mixed = _attend(self, windows, query, key, value, scale=1.0)
        return self.projection(mixed.reshape(x.shape))

    def _qkv_bias(self) -> Tensor | None:
        if self.query_bias is None or self.value_bias is None:
            return None
        return torch.cat((self.query_bias, torch.zeros_like(self.query_bias), self.value_bias))

    def _normalise(
        self, query_key: Float[Tensor, "windows tokens 2 heads dim"]
    ) -> Float[Tensor, "windows tokens 2 heads dim"]:
        """Return both L2-normalised, the queries times the scale of their head."""
        return query_key * self._factors(query_key)

    def _factors(self, query_key: Tensor) -> Tensor:
        scale = self.log_scale.clamp(max=math.log(MAX_SCALE)).exp()
        scales = torch.stack((scale, torch.ones_like(scale)))[..., None]  # 2 heads 1
        norms = torch.linalg.vector_norm(query_key, dim=-1, keepdim=True).clamp(min=MIN_NORM)
        return (scales.to(norms.dtype) / norms).to(query_key.dtype)


def _fit(layer: WindowAttention | CosineWindowAttention, grid: Grid | None) -> Windows:
    assert grid is not None, "windows need the grid"
    return fit_windows(grid, layer.windows.size, shifted=layer.shifted)


def _attend(
    layer: WindowAttention | CosineWindowAttention,
    windows: Windows,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    scale: float | None,
) -> Float[Tensor, "windows tokens heads dim"]:
    """Attend inside the windows of all images, which are the batch."""
    mask = layer.mask if windows == layer.windows else window_mask(windows, device=query.device)
    bias = _bias_of_window(layer.relative_bias, layer.windows.size, windows.size)
    batch = query.shape[0] // windows.num_windows
    if layer.tap is not None:
        cells = window_cells(windows, device=query.device)
        grids = TokenGrids(queries=windows.grid, keys=windows.grid, windows=(cells, cells))
        of_all = None if mask is None else _repeat(mask, batch)
        layer.tap(query, key, bias=bias, may_attend=of_all, scale=scale, kind="self", grids=grids)
    bias = bias.to(query.dtype)
    if mask is not None:
        # Made for the windows of one image, then copied for each image: the mask is not read for each head.
        bias = _repeat(torch.where(mask, bias, -math.inf), batch)
    result = layer.attend(query, key, value, bias=bias, scale=scale)
    if layer.tap is not None:
        layer.tap.take_result(value, result)
    return result.transpose(1, 2)


def _repeat(of_windows: Tensor, batch: int) -> Tensor:
    """Repeat what belongs to one image's windows for all images."""
    return of_windows.expand(batch, *of_windows.shape).flatten(0, 1)


def _bias_of_window(bias: nn.Module, window: Grid, size: Grid) -> Float[Tensor, "1 heads tokens tokens"]:
    """Return the bias of each pair of tokens; a smaller window is the corner of the larger one."""
    pairs: Tensor = bias(window)
    if size == window:
        return pairs
    pairs = pairs.unflatten(3, window).unflatten(2, window)  # 1 h y x y x
    rows, columns = size
    return pairs[:, :, :rows, :columns, :rows, :columns].flatten(4).flatten(2, 3)
