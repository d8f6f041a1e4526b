"""A trained model ready for use: images in, names and probabilities out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Self

import torch
from jaxtyping import Float, UInt8
from torch import Tensor, nn

from vitrail.data.inputs import ImageInput, OneImage, name_inputs
from vitrail.data.preprocessing import Preprocessing
from vitrail.engines.automatic import start_engine
from vitrail.engines.merged_source import merged_source
from vitrail.engines.opening import ModelInTorch, Source, open_source
from vitrail.interpret.viewer.explanation import Explanation
from vitrail.tasks.classification.explanation import explain_image
from vitrail.tasks.predicting import (
    answer_in_order,
    check_positive,
    check_task,
    chunks_of,
    device_or_default,
    read_image,
)


@dataclass(frozen=True)
class Prediction:
    """What the model says about one image, or why it says nothing."""

    source: str
    """Path of the file, or ``image N`` for the Nth image that came without one."""
    scores: tuple[tuple[str, float], ...]
    """The most probable classes with their probabilities, the most probable first; empty on an error."""
    error: str | None = None
    """Why the file could not be used; None where it could."""

    @classmethod
    def most_probable(
        cls, source: str, probabilities: Float[Tensor, " classes"], class_names: Sequence[str], top: int
    ) -> Self:
        """Return the most probable classes of an image, ``top`` of them or all.

        Args:
            source: what the image is called.
            probabilities: of each class.
            class_names: their names.
            top: how many are named.
        """
        best = probabilities.topk(min(top, len(class_names)))
        scores = zip(best.indices.tolist(), best.values.tolist(), strict=True)
        return cls(source, tuple((class_names[label], value) for label, value in scores))

    @property
    def label(self) -> str:
        """Name of the most probable class; empty on an error."""
        return self.scores[0][0] if self.scores else ""

    @property
    def probability(self) -> float:
        """Probability of the most probable class; 0 on an error."""
        return self.scores[0][1] if self.scores else 0.0

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values."""
        if self.error is not None:
            return {"source": self.source, "error": self.error}
        scores = [{"class": name, "probability": probability} for name, probability in self.scores]
        return {"source": self.source, "class": self.label, "probability": self.probability, "scores": scores}


class Predictor:
    """Classify and explain images with a trained model.

    Args:
        source: a run directory, the folder of a saved or of an exported model, a published model as for
            ``vitrail.load``, or a model that is loaded already.
        device: where the model runs; a GPU where there is one, by default.
        batch_size: images of one forward pass.
        engine: what runs it: torch, compiled, onnxruntime, openvino, or auto, the fastest that
            ``vitrail bench`` found; by default torch, and of an exported model the engine of its format.
            Explanations come from torch in any case.
        precision: of the matrix products: float32, bfloat16 or int8; by default float32, and of an exported
            model its own.
        calibration: images, as for ``predict``, that int8 takes its ranges from.
        merge_tokens: tokens of an image that each block of a ViT merges with alike ones, for speed.
        trust: whether a model exported for torch may be read, which can run code of whoever wrote it.

    Raises:
        CheckpointError: the source holds no usable model, or none of images.
        ConfigError: the batch size is not positive; or there is no such engine or precision, it is not
            installed, does not fit the source, or cannot take the model; or the model cannot merge tokens, or
            is not trusted.
        DataError: int8 has no images to take its ranges from.

    Example:
        >>> predictor = Predictor("runs/flowers")
        >>> predictor.predict(["rose.jpg"])[0].label
        'rose'
    """

    def __init__(
        self,
        source: Source,
        *,
        device: str | torch.device | None = None,
        batch_size: int = 32,
        engine: str | None = None,
        precision: str | None = None,
        calibration: ImageInput | Iterable[ImageInput] | None = None,
        merge_tokens: int = 0,
        trust: bool = False,
    ) -> None:
        check_positive("the batch size", batch_size, "Choose 32, or less for large models")
        if merge_tokens:
            source = merged_source(source, merge_tokens)
        opened = open_source(source)
        check_task(
            opened,
            "classification",
            does_not="does not classify images",
            expected="a run that was trained on images with a class each",
        )
        self.preprocessing = Preprocessing.from_tree(opened.preprocessing)
        self.class_names = tuple(opened.class_names)
        self.batch_size = batch_size
        self.engine = start_engine(
            source,
            opened,
            engine=engine,
            precision=precision,
            device=device,
            batch_size=batch_size,
            calibration=[] if calibration is None else self._calibrate(calibration),
            trust=trust,
        )
        """What runs the model."""
        self.device = device_or_default(device)
        self._in_torch = ModelInTorch(source, self.device)

    @property
    def model(self) -> nn.Module:
        """The model in torch, whatever engine predicts.

        Raises:
            ConfigError: the source is an exported model.
        """
        return self._in_torch.get()

    def predict(self, inputs: ImageInput | Iterable[ImageInput], *, top: int = 5) -> list[Prediction]:
        """Classify images; a file that cannot be used yields a prediction with an error, and no exception.

        Args:
            inputs: files, folders, glob patterns, Pillow images or arrays of uint8 pixels, or one of them.
            top: how many classes each prediction names.

        Raises:
            DataError: a folder or pattern holds no image, or nothing was given.
        """
        return list(self.predict_each(inputs, top=top))

    def predict_each(
        self, inputs: ImageInput | Iterable[ImageInput], *, top: int = 5
    ) -> Iterator[Prediction]:
        """Classify images as ``predict`` does, one batch after the other, for long lists.

        Args:
            inputs: as for ``predict``.
            top: as for ``predict``.

        Raises:
            DataError: as ``predict``.
        """
        yield from answer_in_order(
            chunks_of(name_inputs(inputs), self.batch_size),
            read=lambda named: self.read(named[1]),
            run=lambda named, pixels: [
                Prediction.most_probable(name, probabilities, self.class_names, top)
                for (name, _), probabilities in zip(named, self.classify(torch.stack([*pixels])), strict=True)
            ],
            failed=lambda named, error: Prediction(named[0], (), error),
        )

    def explain(self, image: ImageInput) -> Explanation:
        """Classify one image and record what every layer and head attends to.

        Raises:
            DataError: the image cannot be read.
            ConfigError: the model has no attention over patches.
        """
        ((name, given),) = name_inputs([image])
        return self.explain_pixels(self.read(given), name)

    def explain_pixels(
        self, pixels: UInt8[Tensor, "3 height width"], name: str, *, layer: int | None = None
    ) -> Explanation:
        """Explain an image that is prepared already, as the samples of a data source are.

        Args:
            pixels: of the size that the model takes.
            name: what the image is called.
            layer: index of the only layer that is wanted, which saves time; None means all.

        Raises:
            ConfigError: the model has no attention over patches.
        """
        batch = self.preprocessing.normalise(pixels[None]).to(self.device)
        return explain_image(self.model, batch, pixels, name=name, class_names=self.class_names, layer=layer)

    def read(self, image: OneImage) -> UInt8[Tensor, "3 height width"]:
        """Bring one image to the model's size, as in training.

        Raises:
            DataError: the image cannot be read, or holds values that are no numbers.
        """
        return read_image(self.preprocessing, image)

    def classify(self, pixels: UInt8[Tensor, "batch 3 height width"]) -> Float[Tensor, "batch classes"]:
        """Return the probability of each class for prepared images, on the processor.

        Args:
            pixels: as ``read`` returns them.
        """
        (logits,) = self.engine.run((self.preprocessing.normalise(pixels),))
        return logits.softmax(dim=-1)

    def _calibrate(self, images: ImageInput | Iterable[ImageInput]) -> list[tuple[Tensor, ...]]:
        """Return images as batches that an engine is given."""
        pixels = [self.read(image) for _, image in name_inputs(images)]
        parts = chunks_of(pixels, self.batch_size)
        return [(self.preprocessing.normalise(torch.stack([*part])),) for part in parts]
