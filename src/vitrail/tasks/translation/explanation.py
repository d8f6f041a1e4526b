"""Why a translator wrote what it wrote: its attention behind one sentence, ready to be looked at."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from jaxtyping import Float
from torch import Tensor

from vitrail.core.durable import atomic_write
from vitrail.core.errors import ConfigError
from vitrail.interpret import AttentionMap
from vitrail.interpret.viewer.alignment_page import AlignedLayer, AlignedText, Side, write_alignment_page
from vitrail.interpret.viewer.alignment_plot import alignment_png


@dataclass(frozen=True)
class TextExplanation:
    """A sentence, its translation, and what each layer and head attended to while writing it."""

    source: str
    """What was translated."""
    target: str
    """What was written."""
    source_pieces: tuple[str, ...]
    """The subwords that were read, with the end; a dot stands before those within a word."""
    target_pieces: tuple[str, ...]
    """The subwords that were written, with the end."""
    begin_piece: str
    """What the target's own attention reads before the first subword."""
    maps: tuple[AttentionMap, ...]
    """Attention of each layer, of a batch of one, in the order in which the layers run; on the processor.
    Its queries are the pieces that are written where it is of the target, one for each step."""
    sides: tuple[Side, ...]
    """Who reads whom in each of them."""

    @cached_property
    def sharpest(self) -> int:
        """Place of the map from target to source whose heads agree most on one piece for each.

        Deep decoders align in some of their layers only (Garg et al. 2019, section 4.1). What the end of the
        sentence draws counts as nothing, since attention rests there that has nothing to read.
        """
        scores = [
            float(each.weights[0, ..., :-1].mean(dim=0).amax(dim=-1).mean()) if side == "cross" else -1.0
            for each, side in zip(self.maps, self.sides, strict=True)
        ]
        return scores.index(max(scores))

    def alignment(self, layer: int | None = None, head: int | None = None) -> Float[Tensor, "target source"]:
        """Return how much of each source piece was read for each target piece.

        Args:
            layer: index among the maps from target to source; the sharpest by default.
            head: index of the head; None means the mean over heads.

        Raises:
            ConfigError: there is no such layer or head.
        """
        weights = self.maps[self._place(layer)].weights[0]
        return weights.mean(dim=0) if head is None else weights[_checked(head, len(weights), "head")]

    def for_page(self) -> AlignedText:
        """Return everything that the page of alignments shows."""
        crossing = self.sides.count("cross")
        note = "Shown first: of all layers the one that reads most from one place for each piece."
        return AlignedText(
            source=self.source,
            target=self.target,
            source_pieces=self.source_pieces,
            written_pieces=self.target_pieces,
            read_pieces=(self.begin_piece, *self.target_pieces[:-1]),
            layers=[
                AlignedLayer(name=each.layer, side=side, weights=_shares(each))
                for each, side in zip(self.maps, self.sides, strict=True)
            ],
            first_shown=self.sharpest,
            note=note if crossing > 1 else "",
        )

    def picture(self, layer: int | None = None, head: int | None = None) -> bytes:
        """Draw maps from target to source as PNG: of every layer, of every head of one, or one alone.

        Args:
            layer: index among the maps from target to source; None draws the mean over heads of each.
            head: index of the head of that layer, the sharpest by default.

        Raises:
            ConfigError: there is no such layer or head.
        """
        page = self.for_page()
        if layer is None and head is None:
            places = [place for place, side in enumerate(self.sides) if side == "cross"]
            titles = [self.maps[place].layer if len(places) > 1 else "" for place in places]
            return alignment_png(
                [page.panel(place, title=title) for place, title in zip(places, titles, strict=True)]
            )
        place = self._place(layer)
        num_heads = self.maps[place].weights.shape[1]
        heads = range(num_heads) if head is None else [_checked(head, num_heads, "head")]
        name = self.maps[place].layer
        return alignment_png([page.panel(place, each, title=f"{name}, head {each}") for each in heads])

    def save(self, path: str | Path, layer: int | None = None, head: int | None = None) -> None:
        """Write a picture, or for a name that ends in .html the page with everything.

        Args:
            path: a name that ends in .png or .html.
            layer: as in ``picture``; the page shows all.
            head: as in ``picture``.

        Raises:
            ConfigError: the suffix is another one, or there is no such layer or head.
            CheckpointError: the disk is full or not writable; a former file is as it was.
        """
        path = Path(path)
        if is_page(path):
            write_alignment_page(path, [self.for_page()], title=f"Alignment: {self.source}")
        else:
            atomic_write(path, self.picture(layer, head))

    def _place(self, layer: int | None) -> int:
        if layer is None:
            return self.sharpest
        places = [place for place, side in enumerate(self.sides) if side == "cross"]
        return places[_checked(layer, len(places), "layer")]


def is_page(path: Path) -> bool:
    """Tell a page from a picture by its name.

    Raises:
        ConfigError: it is neither.
    """
    suffix = path.suffix.lower()
    if suffix not in (".html", ".htm", ".png"):
        raise ConfigError(
            f"{path} has no suffix of a known format",
            expected="a name that ends in .html or .png",
            remedy="Choose .html for the page with every layer and head",
        )
    return suffix != ".png"


def _shares(recorded: AttentionMap) -> Float[Tensor, "heads queries keys"]:
    """Return weights of 0..1; those of a mixer, which may be negative, by size and up to their largest."""
    weights = recorded.weights[0]
    if recorded.kind != "mixing":
        return weights
    sizes = weights.abs()
    return sizes / sizes.amax(dim=-1, keepdim=True).clamp(min=1e-12)


def _checked(index: int, count: int, what: str) -> int:
    if not -count <= index < count:
        raise ConfigError(
            f"there is no {what} {index}",
            expected=f"an index below {count}, the number of {what}s",
            remedy=f"Choose another {what}, -1 for the last",
        )
    return index % count
