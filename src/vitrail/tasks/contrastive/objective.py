"""Contrastive (CLIP) loss over the in-batch image-text pairs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from vitrail.data.augment import augment
from vitrail.data.settings import AugmentSettings
from vitrail.data.text.rows import join_rows
from vitrail.data.text_preprocessing import ImageTextPreprocessing
from vitrail.train.losses import gather_rows
from vitrail.train.objective import Loss, TensorBatch, first_of_each

SHOWN_AT_MOST = 20  # images of a report with the worst-ranked texts
IN_EVERY_VALIDATION = ("mean_recall", "image_to_text_r1", "text_to_image_r1", "text_to_image_r5")


@dataclass(frozen=True)
class ImageTextBatch(TensorBatch):
    """Images with their texts."""

    images: Float[Tensor, "images 3 height width"]
    tokens: Int[Tensor, "texts tokens"]
    """Subwords of each text between begin and end, then padding."""
    lengths: Int[Tensor, " texts"]
    """Subwords of each text, including begin and end."""
    owners: Int[Tensor, " texts"]
    """Source index of the image of each text; texts of one image are adjacent."""
    numbers: Int[Tensor, " texts"]
    """Index of each text among its image's texts."""
    indices: Int[Tensor, " images"]
    """Index of each image in its source."""


class ContrastiveObjective:
    """Collation, contrastive loss and retrieval evaluation."""

    best_by: tuple[str, Literal["max", "min"]] = ("mean_recall", "max")
    unit = "images"

    def __init__(
        self,
        preprocessing: ImageTextPreprocessing,
        augment: AugmentSettings | None = None,
        *,
        pad_id: int = 0,
    ) -> None:
        self.preprocessing, self.pad_id = preprocessing, pad_id
        self.augment = AugmentSettings.from_tree({}) if augment is None else augment

    def collate(self, samples: Sequence[Any], generator: torch.Generator | None) -> ImageTextBatch:
        """Stack and normalise images, and join their texts; with a generator, augment the images."""
        images = self.preprocessing.normalise(torch.stack([sample.image for sample in samples]))
        if generator is not None:
            images = augment(images, self.augment, generator)
        tokens, lengths = join_rows([row for sample in samples for row in sample.rows], pad_id=self.pad_id)
        counts = torch.tensor([len(sample.rows) for sample in samples], dtype=torch.int64)
        indices = torch.tensor([sample.index for sample in samples], dtype=torch.int64)
        return ImageTextBatch(
            images=images,
            tokens=tokens,
            lengths=lengths,
            owners=indices.repeat_interleave(counts),
            numbers=torch.cat([torch.arange(int(count)) for count in counts]),
            indices=indices,
        )

    def loss(self, model: nn.Module, batch: ImageTextBatch) -> Loss:
        """Sum the symmetric cross entropy over the images, one text each, in float32.

        Negatives come from all processes, so that the gradients are those of one process with the whole
        batch. Micro-batches (``train.accumulate``) do not share negatives.
        """
        output = model(batch.images, batch.tokens, batch.lengths)
        images, texts = output.images.float(), output.texts.float()
        gathered, first = gather_rows(torch.cat((images, texts), dim=1))
        all_images, all_texts = gathered.chunk(2, dim=1)
        targets = torch.arange(first, first + len(images), device=images.device)
        with torch.autocast(images.device.type, enabled=False):  # cosines times 100 need full precision
            losses, is_found = contrast(images, texts, all_images, all_texts, targets, output.scale.float())
        return Loss(
            total=losses.sum(),
            count=losses.new_full((), len(batch)),
            parts={"found_text": is_found.sum().float(), "scale": output.scale.detach() * len(batch)},
        )

    def evaluator(self) -> RetrievalEvaluator:
        return RetrievalEvaluator()


def contrast(
    images: Float[Tensor, "own dim"],
    texts: Float[Tensor, "own dim"],
    all_images: Float[Tensor, "all dim"],
    all_texts: Float[Tensor, "all dim"],
    targets: Int[Tensor, " own"],
    scale: Float[Tensor, ""],
) -> tuple[Float[Tensor, " own"], Int[Tensor, " own"]]:
    """Return the symmetric loss of each pair, and whether each image is nearest to its own text.

    The loss is the mean of two cross entropies: image to all texts, and text to all images. Embeddings are
    normalised; ``targets`` are the indices of the pairs among all.

    Paper: Radford et al. 2021, figure 3; Oord et al. 2018, equation 4.
    """
    by_image, by_text = scale * images @ all_texts.T, scale * texts @ all_images.T
    losses = (
        F.cross_entropy(by_image, targets, reduction="none")
        + F.cross_entropy(by_text, targets, reduction="none")
    ) / 2
    return losses, (by_image.detach().argmax(dim=1) == targets).long()


class RetrievalEvaluator:
    """Collect the embeddings of all images and texts, on the CPU."""

    def __init__(self) -> None:
        self._found: list[dict[str, Tensor]] = []

    def update(self, model: nn.Module, batch: ImageTextBatch) -> None:
        output = model(batch.images, batch.tokens, batch.lengths)
        collected = {
            "images": output.images.float(),
            "indices": batch.indices,
            "texts": output.texts.float(),
            "owners": batch.owners,
            "numbers": batch.numbers,
        }
        self._found.append({name: tensor.detach().cpu() for name, tensor in collected.items()})

    def state(self) -> dict[str, Tensor]:
        """Return what was collected, in source order and without duplicates.

        Scores are therefore independent of batch size and number of processes.
        """
        if not self._found:
            return {}
        joined = {name: torch.cat([part[name] for part in self._found]) for name in self._found[0]}
        of_images = first_of_each(joined["indices"])
        most = int(joined["numbers"].max()) + 1 if len(joined["numbers"]) else 1
        of_texts = first_of_each(joined["owners"] * most + joined["numbers"])
        rows = {name: of_images if name in ("images", "indices") else of_texts for name in joined}
        return {name: tensor[rows[name]] for name, tensor in joined.items()}

    def absorb(self, state: dict[str, Tensor]) -> None:
        if state:
            self._found.append(state)

    def result(self) -> dict[str, Any]:
        state = self.state()
        scores = retrieval_scores(self._ranks(state)) if state else {}
        chosen = {name: scores.get(name, 0.0) for name in IN_EVERY_VALIDATION}
        return {**chosen, "count": len(state["images"]) if state else 0}

    def report(self) -> tuple[dict[str, float], dict[str, Any]]:
        state = self.state()
        if not state:
            return {}, {}
        ranks = self._ranks(state)
        worst = ranks.of_texts.argsort(descending=True, stable=True)[:SHOWN_AT_MOST]
        tables = {
            "num_images": len(state["images"]),
            "num_texts": len(state["texts"]),
            "worst_images": [
                {"index": int(state["indices"][index]), "rank": int(ranks.of_texts[index])} for index in worst
            ],
        }
        return retrieval_scores(ranks), tables

    def _ranks(self, state: dict[str, Tensor]) -> RetrievalRanks:
        indices = torch.searchsorted(state["indices"], state["owners"])
        return retrieval_ranks(state["images"], state["texts"], indices)


DEPTHS = (1, 5, 10)
ROWS_AT_ONCE = 1024  # of the cosine matrix, which may exceed memory as a whole


class RetrievalRanks(NamedTuple):
    """1-based ranks of the correct match."""

    of_texts: Int[Tensor, " images"]
    """For each image the best rank of any of its texts, among all texts."""
    of_images: Int[Tensor, " texts"]
    """For each text the rank of its image, among all images."""


def retrieval_ranks(
    images: Float[Tensor, "images dim"],
    texts: Float[Tensor, "texts dim"],
    image_of_text: Int[Tensor, " texts"],
) -> RetrievalRanks:
    """Rank by dot products; ties count against the correct match.

    >>> images, texts = torch.eye(2), torch.tensor([[1.0, 0.0], [0.6, 0.8], [0.9, 0.1]])
    >>> ranks = retrieval_ranks(images, texts, torch.tensor([0, 1, 1]))
    >>> ranks.of_texts.tolist(), ranks.of_images.tolist()
    ([1, 1], [1, 1, 2])
    """
    of_images = []
    for rows, owners in zip(texts.split(ROWS_AT_ONCE), image_of_text.split(ROWS_AT_ONCE), strict=True):
        scores = rows @ images.T
        own = scores.gather(1, owners[:, None])
        of_images.append((scores >= own).sum(dim=1))  # includes its own image
    of_texts = []
    for first, rows in zip(range(0, len(images), ROWS_AT_ONCE), images.split(ROWS_AT_ONCE), strict=True):
        scores = rows @ texts.T
        is_own = image_of_text[None] == torch.arange(first, first + len(rows), device=rows.device)[:, None]
        best = scores.masked_fill(~is_own, -torch.inf).amax(dim=1, keepdim=True)
        of_texts.append(((scores >= best) & ~is_own).sum(dim=1) + 1)
    nothing = image_of_text[:0]
    return RetrievalRanks(torch.cat([nothing, *of_texts]), torch.cat([nothing, *of_images]))


def retrieval_scores(ranks: RetrievalRanks) -> dict[str, float]:
    """Return recall at 1, 5 and 10 both ways, their mean, and median ranks.

    All are zero if there is nothing to rank.
    """
    scores: dict[str, float] = {}
    for way, found in (("image_to_text", ranks.of_texts), ("text_to_image", ranks.of_images)):
        for depth in DEPTHS:
            hits = (found <= depth).double()
            scores[f"{way}_r{depth}"] = float(hits.mean()) if len(found) else 0.0
    mean = sum(scores.values()) / len(scores)
    medians = {
        "median_rank_of_texts": float(ranks.of_texts.median()) if len(ranks.of_texts) else 0.0,
        "median_rank_of_images": float(ranks.of_images.median()) if len(ranks.of_images) else 0.0,
    }
    return {"mean_recall": mean, **scores, **medians}
