"""A trained detector ready for use: images in, detections out."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int, UInt8
from torch import Tensor

from vitrail.core.boxes import clip_boxes
from vitrail.core.errors import CheckpointError, ConfigError
from vitrail.data.box_preprocessing import BoxPreprocessing
from vitrail.data.images import upright_size
from vitrail.data.inputs import ImageInput, OneImage, name_input, name_inputs, open_input
from vitrail.engines.choice import start_engine
from vitrail.engines.export.package import Package
from vitrail.engines.loading import ModelInTorch, Source, open_source
from vitrail.models import config_from_settings
from vitrail.models.checkpoint import CLASS_IDS_FILE, LoadedModel
from vitrail.models.contract import DetectionOutput
from vitrail.tasks.detection.detections import (
    DEFAULT_THRESHOLD,
    Detections,
    SelectedBoxes,
    own_threshold,
    select_boxes,
)
from vitrail.tasks.predicting import (
    Results,
    answer_in_order,
    check_positive,
    check_task,
    chunks_of,
    device_or_default,
    over_photograph,
)

if TYPE_CHECKING:
    from vitrail.interpret.viewer.explanation import Explanation


class Detector:
    """Find objects in images with a trained model.

    Args:
        source: a run directory, the folder of a saved or an exported model, a published model as for
            ``vitrail.load``, or a loaded model.
        device: by default a GPU if there is one.
        batch_size: images per forward pass.
        engine: torch, compiled, onnxruntime, openvino, or auto, the fastest that ``vitrail bench`` found; by
            default torch, or the engine of an exported model's format. Explanations always use torch.
        precision: of the matrix products: float32, bfloat16 or int8; by default float32, or that of an
            exported model.
        calibration: images, as for ``detect``, that calibrate the int8 ranges.
        trust: whether a model exported for torch may be read, which can run its author's code.

    Raises:
        CheckpointError: the source holds no usable model, or none that finds boxes.
        ConfigError: the batch size is not positive; or the engine or precision is unknown, not installed,
            does not fit the source, or cannot run the model; or the source is not trusted.
        DataError: int8 has no calibration images.

    Example:
        >>> detector = Detector("runs/cells")  # doctest: +SKIP
        >>> found = detector.detect("slide.jpg")[0]  # doctest: +SKIP
        >>> found.class_names[found.labels[0]], found.boxes_xyxy[0]  # doctest: +SKIP
        ('RBC', tensor([ 80.1,  72.9, 184.0, 176.5]))
    """

    def __init__(
        self,
        source: Source,
        *,
        device: str | torch.device | None = None,
        batch_size: int = 8,
        engine: str | None = None,
        precision: str | None = None,
        calibration: ImageInput | Iterable[ImageInput] | None = None,
        trust: bool = False,
    ) -> None:
        check_positive("the batch size", batch_size, "Choose 8, or less for large images")
        opened = open_source(source)
        check_task(opened, "detection")
        model: Any = opened.model if isinstance(opened, LoadedModel) else None
        self.config: Any = model.config if model else config_from_settings(opened.model_settings)
        self.preprocessing = BoxPreprocessing.from_tree(opened.preprocessing)
        self.class_names = tuple(opened.class_names)
        self.class_ids = _class_ids(opened)
        self.batch_size = batch_size
        self.threshold = own_threshold(opened.about)
        """Default confidence threshold: the one of the best F1 on the run's validation images."""
        given = [] if calibration is None else name_inputs(calibration)
        pixels = [self.read(image, name)[0] for name, image in given]
        self.device = device_or_default(device)
        self.engine = start_engine(
            source,
            opened,
            engine=engine,
            precision=precision,
            device=device,
            batch_size=batch_size,
            calibration=[self._join(part) for part in chunks_of(pixels, batch_size)],
            trust=trust,
        )
        self._in_torch = ModelInTorch(source, self.device)

    @property
    def model(self) -> Any:
        """The torch model, whatever engine is used; ``ConfigError`` if the source is an exported model."""
        return self._in_torch.get()

    def detect(
        self, inputs: ImageInput | Iterable[ImageInput], *, threshold: float | None = None
    ) -> Results[Detections]:
        """Find boxes; an unreadable image yields a result with an error instead of raising.

        Args:
            inputs: files, folders, glob patterns, Pillow images, arrays, tensors, bytes or opened files, or
                one of them; see ``data.inputs.ImageInput``.
            threshold: confidence threshold, 0..1; by default ``self.threshold``.

        Raises:
            ConfigError: the threshold is not in 0..1.
            DataError: a folder or pattern holds no image, or nothing was given.
        """
        return Results(self.detect_each(inputs, threshold=threshold))

    def detect_each(
        self, inputs: ImageInput | Iterable[ImageInput], *, threshold: float | None = None
    ) -> Iterator[Detections]:
        """Find boxes as ``detect`` does, batch by batch, for long lists."""
        least = self.threshold_of(threshold)
        yield from answer_in_order(
            chunks_of(name_inputs(inputs), self.batch_size),
            read=lambda named: self.read(named[1], named[0]),
            run=lambda named, read: [
                self.in_pixels(selected.above(least), size, name)
                for (name, _), (_, size), selected in zip(
                    named, read, self.find([pixels for pixels, _ in read]), strict=True
                )
            ],
            failed=lambda named, error: Detections.failed(named[0], self.class_names, error),
        )

    def explain(self, image: ImageInput, *, threshold: float | None = None) -> Explanation:
        """Find boxes in one image and record what the decoder attended to for each.

        Args:
            image: one, as for ``detect``.
            threshold: confidence threshold of explained boxes, by default ``self.threshold``; the best box is
                always explained.

        Raises:
            DataError: the image cannot be read.
            ConfigError: the model's decoder has no cross-attention to the image, or the threshold is invalid.
        """
        from vitrail.tasks.detection.explanation import explain_boxes

        least = self.threshold_of(threshold)
        name, given = name_input(image)
        pixels, size = self.read(given, name)
        explained = explain_boxes(self, pixels, size, name=name, threshold=least)
        return over_photograph(explained, self.preprocessing, given)

    def threshold_of(self, threshold: float | None) -> float:
        """Return the given threshold, or the model's own.

        Raises:
            ConfigError: it is not in 0..1.
        """
        if threshold is None:
            return self.threshold
        if not isinstance(threshold, int | float) or not 0 <= threshold <= 1:
            raise ConfigError(
                f"the confidence threshold is {threshold!r}",
                expected="a number from 0 to 1",
                remedy=f"Choose {DEFAULT_THRESHOLD}; a lower one keeps more boxes, of which more are wrong",
            )
        return threshold

    def read(
        self, image: OneImage, name: str | None = None
    ) -> tuple[UInt8[Tensor, "3 height width"], tuple[int, int]]:
        """Prepare one image at the model's size; also return its original upright height and width.

        Args:
            image: one, as for ``detect``.
            name: its name in errors.

        Raises:
            DataError: the image cannot be read, or holds NaN or infinite values.
        """
        with open_input(image, name) as opened:
            size = upright_size(opened)  # decoding a large JPEG makes it smaller
            return self.preprocessing.decode(opened), size

    def find(self, pixels: Sequence[UInt8[Tensor, "3 _ _"]]) -> list[SelectedBoxes]:
        """Return all boxes of images from ``read``, padded to a batch, the best first, normalised."""
        logits, boxes = self.engine.run(self._join(pixels))
        return select_boxes(DetectionOutput(logits, boxes), self.config.scoring)

    def in_pixels(self, selected: SelectedBoxes, size: tuple[int, int], name: str) -> Detections:
        """Convert normalised boxes to xyxy in pixels of an upright image of this height and width."""
        corners = self.preprocessing.to_image(selected.boxes.float().cpu(), size)
        return Detections(
            name,
            size,
            clip_boxes(corners, size),
            selected.scores.float().cpu(),
            selected.labels.cpu(),
            self.class_names,
        )

    def _join(
        self, pixels: Sequence[UInt8[Tensor, "3 _ _"]]
    ) -> tuple[Float[Tensor, "batch 3 height width"], Int[Tensor, "batch 2"]]:
        sizes = torch.tensor([each.shape[-2:] for each in pixels])
        height, width = sizes.amax(dim=0).tolist()
        images = torch.stack(
            [
                F.pad(normalised, (0, width - normalised.shape[-1], 0, height - normalised.shape[-2]))
                for normalised in (self.preprocessing.normalise(each[None])[0] for each in pixels)
            ]
        )
        return images, sizes


def _class_ids(loaded: LoadedModel | Package) -> tuple[int, ...]:
    """Return the class ids of the training data; without any, they count from 1."""
    stored = loaded.about.get("class_ids")
    if stored is None and isinstance(loaded, LoadedModel) and CLASS_IDS_FILE in loaded.files:
        stored = json.loads(loaded.files[CLASS_IDS_FILE])
    ids = tuple(range(1, len(loaded.class_names) + 1)) if stored is None else tuple(map(int, stored))
    if len(set(ids)) != len(loaded.class_names):
        raise CheckpointError(
            f"the model has {len(loaded.class_names)} classes and {len(set(ids))} different class ids",
            expected="one id for each class",
            remedy=f"Save the model again with one id for each class in {CLASS_IDS_FILE}",
        )
    return ids
