"""What a detector read each of its boxes from: its attention, ready to be looked at."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from jaxtyping import Float
from PIL import Image
from torch import Tensor

from vitrail.core.durable import atomic_write
from vitrail.core.errors import ConfigError
from vitrail.interpret import AttentionMap
from vitrail.interpret.box_drawing import Corners, DrawnBox, draw_boxes
from vitrail.interpret.draw import GAP_PX, enlarge_picture, overlay, side_by_side
from vitrail.interpret.viewer.box_explain_page import (
    BoxLayer,
    ExplainedBox,
    ExplainedDetections,
    write_box_explain_page,
)
from vitrail.tasks.detection.detections import Detections

OVERLAY_PX = 384  # shorter side that a small picture is enlarged to before anything is laid over it
SHEET_COLUMNS, MAX_ON_SHEET = 3, 12  # tiles of a picture with the attention of each box
SHEET_TILE_PX = 480


@dataclass(frozen=True)
class BoxExplanation:
    """The boxes found in an image, and what each layer and head of the model attends to."""

    picture: Image.Image
    """The image as the model saw it."""
    detections: Detections
    """The boxes, the best first."""
    decoder: tuple[AttentionMap, ...]
    """Over the image, of a batch of one, with a query for each of the boxes; first layer first, on the
    processor. Of a layer that reads several levels, each has a map, and then all together have one."""
    encoder: tuple[AttentionMap, ...]
    """Of the places of the image among themselves; empty where no layer attends over the whole image."""

    @property
    def name(self) -> str:
        """Path or other name of the image."""
        return self.detections.name

    def box_attention(
        self, box: int = 0, *, layer: int = -1, head: int | None = None
    ) -> Float[Tensor, "rows columns"]:
        """Return how much a box was read from each cell of a grid over the image.

        Args:
            box: place among the detections.
            layer: index among the maps of the decoder.
            head: index of the head; None means the mean over all.

        Raises:
            ConfigError: there is no such box, layer or head.
        """
        _check_index("box", box, len(self.detections.scores))
        return _row(_at(self.decoder, layer, "decoder"), box, head)

    def place_attention(
        self, point: tuple[float, float], *, layer: int = -1, head: int | None = None
    ) -> Float[Tensor, "rows columns"]:
        """Return how much a place of the image attends to each cell of a grid over it, in the encoder.

        Args:
            point: vertical and horizontal place as shares of the image's height and width, 0..1.
            layer: index among the maps of the encoder.
            head: index of the head; None means the mean over all.

        Raises:
            ConfigError: the point lies outside, or there is no such layer or head.
        """
        if not all(0 <= share <= 1 for share in point):
            raise ConfigError(
                f"the point {point} lies outside of the image",
                expected="shares of the image's height and width, 0 to 1",
                remedy="Divide a place in pixels by the height and the width",
            )
        recorded = _at(self.encoder, layer, "encoder")
        assert recorded.query_grid is not None
        rows, columns = recorded.query_grid
        row, column = min(int(point[0] * rows), rows - 1), min(int(point[1] * columns), columns - 1)
        return _row(recorded, row * columns + column, head)

    def overlay(self, box: int = 0, *, layer: int = -1, head: int | None = None) -> Image.Image:
        """Draw ``box_attention``, whose arguments these are, over the image, with the box."""
        relevance = self.box_attention(box, layer=layer, head=head)
        drawn = overlay(enlarge_picture(self.picture, OVERLAY_PX), relevance)
        return draw_boxes(drawn, [_scaled(self._boxes()[box], drawn.size)])

    def drawn(self) -> Image.Image:
        """Draw all boxes over the image."""
        enlarged = enlarge_picture(self.picture, OVERLAY_PX)
        return draw_boxes(enlarged, [_scaled(box, enlarged.size) for box in self._boxes()])

    def sheet(self) -> Image.Image:
        """Show all boxes, and then what each of the best was read from in the last layer, as tiles."""
        count = min(len(self.detections.scores), MAX_ON_SHEET - 1)
        tiles = [self.drawn(), *(self.overlay(box) for box in range(count))]
        for tile in tiles:
            tile.thumbnail((SHEET_TILE_PX, SHEET_TILE_PX), Image.Resampling.LANCZOS)
        columns = min(len(tiles), SHEET_COLUMNS)
        rows = [side_by_side(tiles[start : start + columns]) for start in range(0, len(tiles), columns)]
        height = sum(row.height for row in rows) + GAP_PX * (len(rows) - 1)
        sheet = Image.new("RGB", (rows[0].width, height), "white")
        for number, row in enumerate(rows):
            sheet.paste(row, (0, number * (rows[0].height + GAP_PX)))
        return sheet

    def save(self, path: str | Path) -> None:
        """Write ``sheet`` as a picture, or for a name that ends in .html the page with everything.

        Raises:
            ConfigError: the suffix is of no known format.
            CheckpointError: the disk is full or not writable; a former file is as it was.
        """
        path = Path(path)
        if path.suffix.lower() in (".html", ".htm"):
            write_box_explain_page(path, [self.for_page()], title=f"Boxes in {Path(self.name).name}")
            return
        picture_format = Image.registered_extensions().get(path.suffix.lower())
        if picture_format not in Image.SAVE:
            raise ConfigError(
                f"{path} has no suffix of a known format",
                expected="a name that ends in .png, .jpg or .html",
                remedy="Choose .html for the page with every layer and head",
            )
        encoded = io.BytesIO()
        self.sheet().save(encoded, format=picture_format)
        atomic_write(path, encoded.getvalue())

    def for_page(self) -> ExplainedDetections:
        """Return everything that the page of explanations shows."""
        boxes = [
            ExplainedBox(corners=box.corners, text=text, label=box.label)
            for box, text in zip(self._boxes(), self._texts(), strict=True)
        ]
        return ExplainedDetections(
            name=Path(self.name).name,
            picture=self.picture,
            still=self.overlay(0),
            boxes=boxes,
            box_layers=_page_layers(self.decoder),
            place_layers=_page_layers(self.encoder),
        )

    def _boxes(self) -> list[DrawnBox]:
        """Return the boxes, with corners as shares of the image."""
        height, width = self.detections.size
        return [
            box._replace(corners=_times(box.corners, 1 / width, 1 / height))
            for box in self.detections.drawn_boxes()
        ]

    def _texts(self) -> list[str]:
        found = self.detections  # a page can write any name, unlike a picture
        return [
            f"{found.class_names[label]} {score:.2f}"
            for label, score in zip(found.labels.tolist(), found.scores.tolist(), strict=True)
        ]


def _scaled(box: DrawnBox, size: tuple[int, int]) -> DrawnBox:
    """Turn shares of a picture into pixels of one of some width and height."""
    return box._replace(corners=_times(box.corners, size[0], size[1]))


def _times(corners: Corners, horizontal: float, vertical: float) -> Corners:
    left, top, right, bottom = corners
    return left * horizontal, top * vertical, right * horizontal, bottom * vertical


def short_names(layers: Sequence[str]) -> list[str]:
    """Leave out what the dotted names of layers have in common, but for their first part.

    Of a layer that reads several levels, the one without a level is all of them together.

    >>> short_names(["decoder.0.attention, level 0", "decoder.0.attention", "decoder.1.attention"])
    ['decoder 0, level 0', 'decoder 0, all levels', 'decoder 1']
    """
    split = [layer.partition(", ") for layer in layers]
    dotted = [name.split(".") for name, _, _ in split]
    levelled = {name for name, _, level in split if level}
    shortest = min(map(len, dotted), default=0)
    told = [place for place in range(1, shortest) if len({parts[place] for parts in dotted}) > 1]
    names = []
    for parts, (name, _, level) in zip(dotted, split, strict=True):
        short = " ".join([parts[0], *(parts[place] for place in told), *parts[shortest:]])
        read = level or ("all levels" if name in levelled else "")
        names.append(f"{short}, {read}" if read else short)
    return names


def _page_layers(maps: Sequence[AttentionMap]) -> list[BoxLayer]:
    layers = []
    for name, recorded in zip(short_names([each.layer for each in maps]), maps, strict=True):
        assert recorded.grid is not None
        weights, query_grid = recorded.weights[0], recorded.query_grid
        layers.append(BoxLayer(name=name, weights=weights, grid=recorded.grid, query_grid=query_grid))
    return layers


def _at(maps: Sequence[AttentionMap], layer: int, part: str) -> AttentionMap:
    _check_index(f"layer of the {part}", layer, len(maps))
    return maps[layer]


def _row(recorded: AttentionMap, query: int, head: int | None) -> Float[Tensor, "rows columns"]:
    assert recorded.grid is not None
    weights = recorded.weights[0, :, query]  # heads keys
    if head is not None:
        _check_index(f"head of layer {recorded.layer}", head, len(weights))
    return (weights.mean(dim=0) if head is None else weights[head]).unflatten(-1, recorded.grid)


def _check_index(what: str, index: int, count: int) -> None:
    if not -count <= index < count:
        raise ConfigError(
            f"there is no {what} {index}",
            expected=f"an index below {count}" if count else f"a model with a {what}",
            remedy="Choose another one",
        )
