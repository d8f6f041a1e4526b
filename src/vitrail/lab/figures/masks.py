"""Attention masks: which query may attend to which key."""

from __future__ import annotations

import torch
from pydantic import Field

from vitrail.core.config import ImageSize
from vitrail.core.errors import DataError
from vitrail.lab.figures.drawing import Drawing, Drawn
from vitrail.nn.masks import causal_mask, neighbourhood_mask, padding_mask
from vitrail.nn.windows import Windows, fit_windows, window_mask, window_positions
from vitrail.report.tiles import Matrix, matrix_figure

PADDING = "-"


def words_of(text: str) -> list[str]:
    """Return the words of a text, at spaces.

    Raises:
        DataError: there is none.
    """
    if not text.split():
        raise DataError(f"there is no word in {text!r}", expected="a sentence", remedy="Give some words")
    return text.split()


class CausalMask(Drawing):
    """The mask of a decoder."""

    name = "causal_mask"
    shows = "Causal mask: a decoder's word sees itself and the words before it"
    source = "Vaswani et al. 2017, section 3.2.3"

    text: tuple[str, ...] = Field(default=("a dog runs on the beach",), min_length=1, max_length=1)
    """A sentence."""

    def draw(self) -> Drawn:
        words = words_of(self.text[0])
        matrices = (Matrix("may attend", causal_mask(len(words))[0, 0].numpy(), words, words),)
        return Drawn(matrix_figure(matrices), matrices)


class PaddingMask(Drawing):
    """The mask of a batch of sentences."""

    name = "padding_mask"
    shows = "Padding mask: no word of a batch sees the padding after a shorter sentence"
    source = "Vaswani et al. 2017, section 3.2.3, for the causal one"

    text: tuple[str, ...] = Field(
        default=("a dog runs", "two old dogs sleep on the beach", "dogs bark at night"), min_length=1
    )
    """The sentences of the batch."""
    causal: bool = False
    """Whether a decoder's causal mask is joined, by ``&``."""

    def draw(self) -> Drawn:
        sentences = [words_of(text) for text in self.text]
        longest = max(map(len, sentences))
        mask = padding_mask(torch.tensor([len(words) for words in sentences]), longest)
        mask = mask & causal_mask(longest) if self.causal else mask.expand(-1, -1, longest, -1)
        matrices = []
        for number, (words, each) in enumerate(zip(sentences, mask[:, 0], strict=True), start=1):
            padded = [*words, *[PADDING] * (longest - len(words))]
            matrices.append(Matrix(f"sentence {number}", each.numpy(), padded, padded))
        return Drawn(matrix_figure(matrices), tuple(matrices))


class NeighbourhoodMask(Drawing):
    """Attention that sees what a convolution sees."""

    name = "neighbourhood_mask"
    shows = "Neighbourhood mask: each patch sees those that a convolution's kernel would cover"
    source = "Ramachandran et al. 2019, section 3"

    grid: ImageSize = (5, 6)
    """Rows and columns of patches."""
    radius: int = Field(default=1, ge=0)
    """Rows and columns seen to each side."""

    def draw(self) -> Drawn:
        matrices = (Matrix("may attend", neighbourhood_mask(self.grid, self.radius)[0, 0].numpy()),)
        return Drawn(matrix_figure(matrices), matrices)


class ShiftedMask(Drawing):
    """The masks of windows that were rolled over the border."""

    name = "shifted_mask"
    shows = "Shifted windows: what may attend to each other, and the mask of each kind of window"
    source = "Liu et al. 2021 (Swin), section 3.2, figure 4"

    grid: ImageSize = (8, 8)
    """Rows and columns of patches."""
    window: ImageSize = (4, 4)
    """Rows and columns of a window."""

    def draw(self) -> Drawn:
        windows = fit_windows(self.grid, self.window, shifted=True)
        masks, kinds = masks_of(windows).unique(dim=0, return_inverse=True)
        matrices = [Matrix("parts of the grid that see each other", attended_regions(windows).numpy())]
        alike: dict[int, list[str]] = {}
        for number, kind in enumerate(kinds.tolist(), start=1):
            alike.setdefault(kind, []).append(str(number))
        for kind, numbers in alike.items():
            more = ", ..." if len(numbers) > 3 else ""
            matrices.append(Matrix(f"mask of window {', '.join(numbers[:3])}{more}", masks[kind].numpy()))
        return Drawn(matrix_figure(matrices), tuple(matrices))


def masks_of(windows: Windows) -> torch.Tensor:
    """Return the mask of each window (windows tokens tokens), of ones where there is none."""
    mask = window_mask(windows)
    size = (windows.num_windows, windows.num_tokens, windows.num_tokens)
    return torch.ones(size, dtype=torch.bool) if mask is None else mask[:, 0]


def attended_regions(windows: Windows) -> torch.Tensor:
    """Number the parts of the grid (rows columns) whose patches may attend to each other, row by row."""
    patches = window_positions(windows)  # windows tokens
    count = windows.grid[0] * windows.grid[1]
    known = torch.where(patches < 0, count, patches)
    first = torch.where(masks_of(windows), known[:, None], count).amin(dim=-1)  # the first that a token sees
    regions = torch.empty(count + 1, dtype=torch.long).index_put_((known.flatten(),), first.flatten())
    return regions[:-1].unique(return_inverse=True)[1].reshape(windows.grid)


DRAWINGS = (CausalMask(), PaddingMask(), NeighbourhoodMask(), ShiftedMask())
