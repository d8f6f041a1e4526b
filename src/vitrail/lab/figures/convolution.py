"""Learned positional attention beside the neighbourhood of a convolution."""

from __future__ import annotations

import torch
from pydantic import Field

from vitrail.lab.convolution_by_attention import SIDE, ConvolutionByAttention, squares_of
from vitrail.lab.figures.drawing import Drawing, Drawn
from vitrail.report.tiles import Matrix, matrix_figure


class PositionalAttention(Drawing):
    """What the claim ``convolution_by_attention`` learns."""

    name = "positional_attention"
    shows = "softmax(p_ij) learned by gradient descent, beside the neighbourhood that a convolution sums over"
    source = "Jelassi, Sander and Li 2022, sections 2 and 3"

    side: int = Field(default=6, ge=2 * SIDE, multiple_of=SIDE)
    """Rows and columns of patches."""
    num_steps: int = Field(default=1500, ge=0)
    """Training steps; 0 shows the beginning."""
    seed: int = 0

    def draw(self) -> Drawn:
        claim = ConvolutionByAttention(side=self.side, num_steps=self.num_steps)
        generator = torch.Generator().manual_seed(self.seed)
        squares = squares_of(self.side)
        model = claim.new_model(None, generator)
        images = claim.new_sets(squares, generator)
        claim.learn(model, lambda: images.draw(claim.batch_size), self.num_steps)
        given = claim.new_model(squares, generator).weights()
        matrices = []
        patches = [0, self.side**2 // 2 + self.side // 2, self.side**2 - 2]
        for name, weights in (("learned", model.weights().detach()), ("convolution", given)):
            matrices.append(Matrix(f"{name}: all pairs of patches", weights.numpy()))
            for patch in patches:
                row, column = divmod(patch, self.side)
                of_one = weights[patch].reshape(self.side, self.side).numpy()
                matrices.append(Matrix(f"{name}: patch in row {row}, column {column}", of_one))
        return Drawn(
            matrix_figure(matrices, columns=1 + len(patches), limits=(0.0, 1 / SIDE**2)), tuple(matrices)
        )


DRAWINGS = (PositionalAttention(),)
