"""A trained model ready for use: images in, names and probabilities out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from jaxtyping import UInt8
from torch import Tensor

from vitrail.checkpoint import LoadedModel
from vitrail.data.images import decode
from vitrail.data.preprocessing import Preprocessing
from vitrail.deploy.explanation import Explanation, explain_image
from vitrail.deploy.inputs import ImageInput, OneImage, name_inputs, open_input
from vitrail.deploy.loading import load_any
from vitrail.errors import CheckpointError, ConfigError, DataError

OTHER_USES = {"pairs": "vitrail translate", "boxes": "vitrail.deploy.Detector"}


@dataclass(frozen=True)
class Prediction:
    """What the model says about one image, or why it says nothing."""

    source: str
    """Path of the file, or ``image N`` for the Nth image that came without one."""
    scores: tuple[tuple[str, float], ...]
    """The most probable classes with their probabilities, the most probable first; empty on an error."""
    error: str | None = None
    """Why the file could not be used; None where it could."""

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
        source: a run directory, the folder of a saved model, a published model as for ``vitrail.load``, or a
            model that is loaded already.
        device: where the model runs; a GPU where there is one, by default.
        batch_size: images of one forward pass.

    Raises:
        CheckpointError: the source holds no usable model, or none of images.
        ConfigError: the batch size is not positive.

    Example:
        >>> predictor = Predictor("runs/flowers")
        >>> predictor.predict(["rose.jpg"])[0].label
        'rose'
    """

    def __init__(
        self,
        source: str | Path | LoadedModel,
        *,
        device: str | torch.device | None = None,
        batch_size: int = 32,
    ) -> None:
        if batch_size < 1:
            raise ConfigError(
                f"the batch size is {batch_size}",
                expected="1 or more",
                remedy="Choose 32, or less for large models",
            )
        loaded = source if isinstance(source, LoadedModel) else load_any(source)
        kind = loaded.preprocessing.get("kind", "images")
        if kind != "images":
            raise CheckpointError(
                f"{loaded.model_settings.get('name', 'the model')} does not classify images",
                expected="a run that was trained on images with a class each",
                remedy=f"Name another run; {OTHER_USES.get(kind, 'another command')} uses this one",
            )
        automatic = "cuda" if torch.cuda.is_available() else "cpu"
        self.device = torch.device(automatic if device is None else device)
        self.model = loaded.model.eval().to(self.device)
        self.preprocessing = Preprocessing.from_tree(loaded.preprocessing)
        self.class_names = tuple(loaded.class_names)
        self.batch_size = batch_size

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
        named = name_inputs(inputs)
        for start in range(0, len(named), self.batch_size):
            yield from self._predict_batch(named[start : start + self.batch_size], top)

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
        if isinstance(image, Path):
            return self.preprocessing.read(image)
        with open_input(image) as opened:
            return self.preprocessing.to_uint8(decode(opened))

    def _predict_batch(self, named: Sequence[tuple[str, OneImage]], top: int) -> list[Prediction]:
        pixels, errors = [], {}
        for place, (_, image) in enumerate(named):
            try:
                pixels.append(self.read(image))
            except DataError as error:
                errors[place] = str(error)
        found: Iterator[tuple[tuple[str, float], ...]] = iter(())
        if pixels:
            batch = self.preprocessing.normalise(torch.stack(pixels)).to(self.device)
            with torch.inference_mode():
                probabilities = self.model(batch).float().softmax(dim=-1).cpu()
            best = probabilities.topk(min(top, probabilities.shape[-1]), dim=-1)
            found = iter(
                tuple((self.class_names[label], value) for label, value in zip(labels, values, strict=True))
                for labels, values in zip(best.indices.tolist(), best.values.tolist(), strict=True)
            )
        return [
            Prediction(name, (), errors[place]) if place in errors else Prediction(name, next(found))
            for place, (name, _) in enumerate(named)
        ]
