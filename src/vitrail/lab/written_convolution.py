"""A convolution written down as attention by places alone: a head for each cell of the kernel.

Paper: Cordonnier, Loukas and Jaggi 2020, theorem 1 and lemma 2, with the quadratic encoding of distances.
"""

from __future__ import annotations

from itertools import product

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from vitrail.nn.attention import attention_weights


def attend_as_convolution(
    image: Float[Tensor, "dim rows columns"], kernel: Float[Tensor, "out dim size size"], alpha: float
) -> Float[Tensor, "out rows columns"]:
    """Return what attention makes of an image when each head looks at one neighbour of every cell.

    The score of cell j for cell i is ``alpha (2 (p_i + d) p_j - p_j^2)``, which is greatest where j stands at
    the offset d from i: the softmax selects that cell as alpha grows. At the edge, where there is no such
    cell, a head looks at the nearest one, not at zeros.

    Args:
        image: what is convolved.
        kernel: of an odd number of rows and columns, as ``conv2d`` takes it.
        alpha: factor of the scores.
    """
    reach = kernel.shape[-1] // 2
    rows, columns = image.shape[-2:]
    places = torch.tensor(list(product(range(rows), range(columns))), dtype=torch.float32)  # cells 2
    offsets = torch.tensor(list(product(range(-reach, reach + 1), repeat=2)), dtype=torch.float32)  # heads 2
    looked_at = places + offsets[:, None]  # heads cells 2
    query = alpha * torch.cat((2 * looked_at, -torch.ones_like(looked_at[..., :1])), dim=-1)
    key = torch.cat((places, places.square().sum(dim=1, keepdim=True)), dim=-1).expand(len(offsets), -1, -1)
    weights = attention_weights(query[None], key[None], scale=1.0)[0]  # heads cells cells
    values = torch.einsum("dn,odh->hno", image.flatten(1), kernel.flatten(2))  # heads cells out
    return (weights @ values).sum(dim=0).T.reshape(-1, rows, columns)


def distance_to_convolution(alpha: float, *, side: int, dim: int, size: int, seed: int) -> float:
    """Return the greatest error beside a random convolution, away from the edge, over its standard deviation.

    Args:
        alpha: factor of the scores.
        side: rows and columns of the image.
        dim: channels of the image and of the result.
        size: rows and columns of the kernel.
        seed: of image and kernel.
    """
    generator = torch.Generator().manual_seed(seed)
    image = torch.randn(dim, side, side, generator=generator)
    kernel = torch.randn(dim, dim, size, size, generator=generator)
    convolved = F.conv2d(image[None], kernel, padding=size // 2)[0]
    inside = slice(size // 2, side - size // 2)
    error = (attend_as_convolution(image, kernel, alpha) - convolved)[:, inside, inside]
    return float(error.abs().max() / convolved[:, inside, inside].std())
