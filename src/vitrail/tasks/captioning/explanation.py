"""What each word of a caption was read from: attention over the image, ready to be looked at."""

from __future__ import annotations

import io
from dataclasses import dataclass
from pathlib import Path

from jaxtyping import Float
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor

from vitrail.core.durable import atomic_write
from vitrail.core.errors import ConfigError
from vitrail.interpret import AttentionMap
from vitrail.interpret.draw import GAP_PX, enlarge_picture, overlay, side_by_side
from vitrail.interpret.viewer.caption_explain_page import (
    CaptionLayer,
    ExplainedCaption,
    write_caption_explain_page,
)

OVERLAY_PX = 384  # shorter side that a small picture is enlarged to before anything is laid over it
TILE_PX, LABEL_PX, COLUMNS = 220, 24, 5  # of the strip: a tile for each word


@dataclass(frozen=True)
class CaptionExplanation:
    """A caption of an image, and what each of its words was read from."""

    name: str
    """Path or other name of the image."""
    picture: Image.Image
    """The image as the model saw it."""
    caption: str
    """What is explained."""
    words: tuple[str, ...]
    """The words of the caption, and the end; each may be of several subwords."""
    maps: tuple[AttentionMap, ...]
    """Over the image, of a batch of one, with a query for each word: the mean over its subwords. First layer
    first, on the processor."""
    unknown: tuple[int, ...] = ()
    """Places among ``words`` of those that the model's vocabulary lacks: it read the mark of an unknown word
    there, whatever the word."""

    @property
    def unknown_words(self) -> list[str]:
        """The words that the model's vocabulary lacks, each once."""
        return list(dict.fromkeys(self.words[place] for place in self.unknown))

    @property
    def labels(self) -> tuple[str, ...]:
        """The words as they are shown, unknown ones marked."""
        return tuple(
            f"{word} (unknown)" if place in self.unknown else word for place, word in enumerate(self.words)
        )

    def word_attention(
        self, word: int, *, layer: int | None = None, head: int | None = None
    ) -> Float[Tensor, "rows columns"]:
        """Return how much a word was read from each cell of a grid over the image.

        Args:
            word: place among ``words``.
            layer: index among the maps; None means the mean over all layers.
            head: index of the head; None means the mean over all heads.

        Raises:
            ConfigError: there is no such word, layer or head.
        """
        _check_index("word", word, len(self.words))
        if layer is None:
            if head is not None:
                _check_index("head of all layers together", head, 0)
            means = [self.word_attention(word, layer=index) for index in range(len(self.maps))]
            return sum(means[1:], means[0]) / len(means)
        _check_index("layer", layer, len(self.maps))
        recorded = self.maps[layer]
        assert recorded.grid is not None
        weights = recorded.weights[0, :, word]  # heads cells
        if head is not None:
            _check_index(f"head of layer {recorded.layer}", head, len(weights))
        return (weights.mean(dim=0) if head is None else weights[head]).unflatten(-1, recorded.grid)

    def overlay(self, word: int, *, layer: int | None = None, head: int | None = None) -> Image.Image:
        """Draw ``word_attention``, whose arguments these are, over the image; a small image is enlarged."""
        relevance = self.word_attention(word, layer=layer, head=head)
        return overlay(enlarge_picture(self.picture, OVERLAY_PX), relevance)

    def strip(self, *, layer: int | None = None, head: int | None = None) -> Image.Image:
        """Show the image, and then each word over what it was read from, as tiles with ``labels`` on top.

        Arguments and errors are those of ``word_attention``.
        """
        tiles = [_labelled(enlarge_picture(self.picture, OVERLAY_PX), "")]
        tiles += [
            _labelled(self.overlay(word, layer=layer, head=head), text)
            for word, text in enumerate(self.labels[:-1])
        ]
        rows = [side_by_side(tiles[start : start + COLUMNS]) for start in range(0, len(tiles), COLUMNS)]
        height = sum(row.height for row in rows) + GAP_PX * (len(rows) - 1)
        sheet = Image.new("RGB", (rows[0].width, height), "white")
        for number, row in enumerate(rows):
            sheet.paste(row, (0, number * (rows[0].height + GAP_PX)))
        return sheet

    def save(self, path: str | Path, *, layer: int | None = None, head: int | None = None) -> None:
        """Write ``strip`` as a picture, or for a name that ends in .html the page with everything.

        Args:
            path: a file with the suffix of a picture format, or .html.
            layer: what a picture shows, as in ``word_attention``; the page shows all.
            head: likewise.

        Raises:
            ConfigError: the suffix is of no known format, or there is no such layer or head.
            CheckpointError: the disk is full or not writable; a former file is as it was.
        """
        path = Path(path)
        if path.suffix.lower() in (".html", ".htm"):
            write_caption_explain_page(path, [self.for_page()], title=self.caption or Path(self.name).name)
            return
        picture_format = Image.registered_extensions().get(path.suffix.lower())
        if picture_format not in Image.SAVE:
            raise ConfigError(
                f"{path} has no suffix of a known format",
                expected="a name that ends in .png, .jpg or .html",
                remedy="Choose .html for the page with every layer and head",
            )
        encoded = io.BytesIO()
        self.strip(layer=layer, head=head).save(encoded, format=picture_format)
        atomic_write(path, encoded.getvalue())

    def for_page(self) -> ExplainedCaption:
        """Return everything that the page of explanations shows."""
        layers = [_page_layer(recorded) for recorded in self.maps]
        if len(layers) > 1 and len({layer.grid for layer in layers}) == 1:
            means = [layer.weights.mean(dim=0, keepdim=True) for layer in layers]
            joined = sum(means[1:], means[0]) / len(means)
            layers.append(CaptionLayer(name="mean over layers", weights=joined, grid=layers[0].grid))
        return ExplainedCaption(
            name=self.name,
            picture=self.picture,
            still=self.strip(),
            caption=self.caption,
            words=self.labels,
            layers=layers,
        )


def _page_layer(recorded: AttentionMap) -> CaptionLayer:
    assert recorded.grid is not None
    return CaptionLayer(name=recorded.layer, weights=recorded.weights[0], grid=recorded.grid)


def _labelled(picture: Image.Image, text: str) -> Image.Image:
    """Bring a picture to the size of a tile, with a text above it."""
    picture = picture.convert("RGB")
    picture.thumbnail((TILE_PX, TILE_PX), Image.Resampling.LANCZOS)
    tile = Image.new("RGB", (TILE_PX, picture.height + LABEL_PX), "white")
    tile.paste(picture, ((TILE_PX - picture.width) // 2, LABEL_PX))
    font = ImageFont.load_default(size=16)
    shown = text
    while len(shown) > 1 and font.getlength(shown) > TILE_PX - 4:
        shown = shown[:-2] + "\u2026"
    left = (TILE_PX - font.getlength(shown)) / 2
    ImageDraw.Draw(tile).text((left, 2), shown, fill="black", font=font)
    return tile


def _check_index(what: str, index: int, count: int) -> None:
    if not -count <= index < count:
        raise ConfigError(
            f"there is no {what} {index}",
            expected=f"an index below {count}" if count else "one layer to be chosen, with --layer",
            remedy="Choose another one",
        )
