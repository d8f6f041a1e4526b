"""Inference with a trained classifier: images in, class probabilities out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, Self, runtime_checkable

import torch
from jaxtyping import Float, UInt8
from torch import Tensor, nn

from vitrail.core.errors import CheckpointError
from vitrail.data.inputs import ImageInput, OneImage, name_input, name_inputs
from vitrail.data.preprocessing import Preprocessing
from vitrail.engines.choice import start_engine
from vitrail.engines.loading import ModelInTorch, Source, merged_source, open_source
from vitrail.interpret.viewer.explanation import Explanation
from vitrail.tasks.answer_files import FileResults, check_answer_file
from vitrail.tasks.classification.explanation import explain_image
from vitrail.tasks.contract import FileOptions
from vitrail.tasks.predicting import (
    Results,
    answer_in_order,
    check_positive,
    check_task,
    chunks_of,
    device_or_default,
    over_photograph,
    ranked_results,
    ranked_rows,
    read_image,
)


@dataclass(frozen=True)
class Prediction:
    """The predicted classes of one image, or an error."""

    source: str
    """Path of the file, or ``image N`` for the Nth image without one."""
    scores: tuple[tuple[str, float], ...]
    """Classes with probabilities, most probable first; empty on an error."""
    error: str | None = None
    """Why the file could not be used."""

    @classmethod
    def most_probable(
        cls, source: str, probabilities: Float[Tensor, " classes"], class_names: Sequence[str], top: int
    ) -> Self:
        """Return the ``top`` most probable classes of an image, by default all."""
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
        if self.error is not None:
            return {"source": self.source, "error": self.error}
        scores = [{"class": name, "probability": probability} for name, probability in self.scores]
        return {"source": self.source, "class": self.label, "probability": self.probability, "scores": scores}

    def to_rows(self) -> list[dict[str, Any]]:
        """Return a row for each class."""
        return ranked_rows({"image": self.source}, ("class", "probability"), self.scores, self.error)


@runtime_checkable
class ImageClassifier(Protocol):
    """What classifies prepared images, and therefore files, folders and images in memory."""

    class_names: tuple[str, ...]
    batch_size: int

    def read(self, image: OneImage) -> UInt8[Tensor, "3 height width"]:
        """Resize one image to the model's input size, as in training.

        Raises:
            DataError: the image cannot be read, or contains NaN or infinite values.
        """

    def classify(self, pixels: UInt8[Tensor, "batch 3 height width"]) -> Float[Tensor, "batch classes"]:
        """Return the class probabilities of images from ``read``, on the CPU."""

    def predict(self, inputs: ImageInput | Iterable[ImageInput], *, top: int = 5) -> Results[Prediction]:
        """Classify images; an unusable file yields a prediction with an error instead of raising.

        Args:
            inputs: files, folders, glob patterns, Pillow images, arrays, tensors, bytes or opened files, or
                one of them; see ``data.inputs.ImageInput``.
            top: number of classes per prediction.

        Raises:
            DataError: a folder or pattern holds no image, or nothing was given.
        """
        return Results(self.predict_each(inputs, top=top))

    def predict_each(
        self, inputs: ImageInput | Iterable[ImageInput], *, top: int = 5
    ) -> Iterator[Prediction]:
        """Classify images like ``predict``, lazily batch by batch, for long lists."""
        check_positive("the number of classes", top)
        yield from answer_in_order(
            chunks_of(name_inputs(inputs), self.batch_size),
            read=lambda named: self.read(named[1]),
            run=lambda named, pixels: [
                Prediction.most_probable(name, probabilities, self.class_names, top)
                for (name, _), probabilities in zip(named, self.classify(torch.stack([*pixels])), strict=True)
            ],
            failed=lambda named, error: Prediction(named[0], (), error),
        )


class Predictor(ImageClassifier):
    """Classify and explain images with a trained model.

    Args:
        source: a run directory, the folder of a saved or exported model, a published model as for
            ``vitrail.load``, or a loaded model.
        device: by default a GPU, if there is one.
        engine: torch, compiled, onnxruntime, openvino, or auto, the fastest that ``vitrail bench`` found; by
            default torch, or the engine of an exported model's format. Explanations always use torch.
        precision: float32, bfloat16 or int8; by default float32, or that of an exported model.
        calibration: images for int8 calibration, as for ``predict``.
        merge_tokens: tokens that each block of a ViT merges (ToMe), for speed.
        trust: allow reading a model exported for torch, which can run its author's code.

    Raises:
        CheckpointError: the source holds no usable model, or none of images.
        ConfigError: the batch size is not positive; or there is no such engine or precision, it is not
            installed, does not fit the source, or cannot take the model; or the model cannot merge tokens, or
            is not trusted.
        DataError: int8 without calibration images.

    Example:
        >>> predictor = Predictor("runs/flowers")  # doctest: +SKIP
        >>> predictor.predict(["rose.jpg"])[0].label  # doctest: +SKIP
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
        check_task(opened, "classification")
        self.preprocessing = Preprocessing.from_tree(opened.preprocessing)
        self.class_names = tuple(opened.class_names)
        self.batch_size = batch_size
        self.device = device_or_default(device)
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
        self._in_torch = ModelInTorch(source, self.device)

    @property
    def model(self) -> nn.Module:
        """The torch model, whatever engine predicts; ``ConfigError`` if the source is an exported model."""
        return self._in_torch.get()

    def explain(self, image: ImageInput) -> Explanation:
        """Classify one image and record the attention of every layer; ``DataError`` if it cannot be read."""
        name, given = name_input(image)
        return over_photograph(self.explain_pixels(self.read(given), name), self.preprocessing, given)

    def explain_pixels(
        self, pixels: UInt8[Tensor, "3 height width"], name: str, *, layer: int | None = None
    ) -> Explanation:
        """Explain an already prepared image, such as a sample of a data source.

        Args:
            pixels: of the model's input size.
            layer: records this layer only, which saves time; None records all.
        """
        batch = self.preprocessing.normalise(pixels[None]).to(self.device)
        return explain_image(self.model, batch, pixels, name=name, class_names=self.class_names, layer=layer)

    def read(self, image: OneImage) -> UInt8[Tensor, "3 height width"]:
        return read_image(self.preprocessing, image)

    def classify(self, pixels: UInt8[Tensor, "batch 3 height width"]) -> Float[Tensor, "batch classes"]:
        (logits,) = self.engine.run((self.preprocessing.normalise(pixels),))
        if not logits.isfinite().all():
            raise CheckpointError(
                "the model's scores are NaN or infinite",
                expected="a model with finite weights, in a precision that holds its scores",
                remedy="Use another checkpoint, or leave out --precision",
            )
        return logits.softmax(dim=-1)

    def _calibrate(self, images: ImageInput | Iterable[ImageInput]) -> list[tuple[Tensor, ...]]:
        pixels = [self.read(image) for _, image in name_inputs(images)]
        parts = chunks_of(pixels, self.batch_size)
        return [(self.preprocessing.normalise(torch.stack([*part])),) for part in parts]


DEFAULT_TOP = 3


def classify_files(files: Sequence[str], options: FileOptions) -> FileResults:
    """Return the most probable classes of each file."""
    check_answer_file(options.output)
    predictor = Predictor(
        options.source, engine=options.engine, precision=options.precision, trust=options.trust
    )
    return ranked_results(predictor.predict(files, top=options.top or DEFAULT_TOP), "{:.1%}", probability=6)
