"""Inference with a trained captioner: images in, captions out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import UInt8
from torch import Tensor

from vitrail.data.inputs import ImageInput, OneImage, name_input, name_inputs
from vitrail.data.text.subwords import vocabulary_from_files
from vitrail.data.text_preprocessing import CaptionPreprocessing
from vitrail.models.checkpoint import LoadedModel
from vitrail.tasks.answer_files import FileResults, check_answer_file
from vitrail.tasks.captioning.objective import find_captions, write_captions
from vitrail.tasks.captioning.settings import CaptionSettings
from vitrail.tasks.contract import FileOptions
from vitrail.tasks.generation import distinct_texts
from vitrail.tasks.predicting import (
    Results,
    answer_in_order,
    check_positive,
    chunks_of,
    device_or_default,
    open_in_torch,
    over_photograph,
    ranked_results,
    ranked_rows,
    read_image,
)

if TYPE_CHECKING:
    from vitrail.interpret.viewer.explanation import Explanation


@dataclass(frozen=True)
class Caption:
    """The captions of one image, or an error."""

    source: str
    """Path of the file, or ``image N`` for the Nth image without one."""
    texts: tuple[tuple[str, float], ...]
    """Captions with scores, best first: log-probability / length penalty; empty on an error."""
    is_finished: bool = True
    """Whether the best caption ended before the maximum length."""
    error: str | None = None
    """Why the file could not be used."""

    @property
    def text(self) -> str:
        """The best caption; empty on an error."""
        return self.texts[0][0] if self.texts else ""

    @property
    def score(self) -> float:
        """Score of the best caption; 0 on an error."""
        return self.texts[0][1] if self.texts else 0.0

    def to_json(self) -> dict[str, Any]:
        if self.error is not None:
            return {"source": self.source, "error": self.error}
        first, *others = [{"caption": text, "score": score} for text, score in self.texts]
        found: dict[str, Any] = {"source": self.source} | first
        if others:
            found["alternatives"] = others
        if not self.is_finished:
            found["warning"] = "the caption was cut off at the maximum length"
        return found

    def to_rows(self) -> list[dict[str, Any]]:
        """Return a row for each caption."""
        return ranked_rows({"image": self.source}, ("caption", "score"), self.texts, self.error)


class Captioner:
    """Caption and explain images with a trained model.

    Args:
        source: a run directory, the folder of a saved model, or a loaded model.
        device: by default a GPU, if there is one.

    Raises:
        CheckpointError: the source holds no usable model, or none that captions.
        ConfigError: the batch size is not positive.

    Example:
        >>> captioner = Captioner("runs/flickr8k")  # doctest: +SKIP
        >>> captioner.predict(["dog.jpg"])[0].text  # doctest: +SKIP
        'a brown dog is running through the grass'
    """

    def __init__(
        self,
        source: str | Path | LoadedModel,
        *,
        device: str | torch.device | None = None,
        batch_size: int = 16,
    ) -> None:
        check_positive("the batch size", batch_size)
        self.device, self.batch_size = device_or_default(device), batch_size
        loaded = open_in_torch(source, "captioning", self.device)
        self.model: Any = loaded.model
        self.config: Any = loaded.model.config
        self.preprocessing = CaptionPreprocessing.from_tree(loaded.preprocessing)
        self.vocabulary = vocabulary_from_files(loaded.files)
        self.settings = CaptionSettings.from_tree(loaded.about.get("task", {}))

    def predict(
        self, inputs: ImageInput | Iterable[ImageInput], *, beam_size: int | None = None, num_best: int = 1
    ) -> Results[Caption]:
        """Caption images; an unusable one yields a caption with an error instead of raising.

        Args:
            inputs: files, folders, glob patterns, Pillow images, arrays, tensors, bytes or opened files, or
                one of them; see ``data.inputs.ImageInput``.
            beam_size: 1 is fastest; by default as the run was scored.
            num_best: different captions per image; fewer if the beam holds fewer.

        Raises:
            ConfigError: a number is not positive, or more captions are wanted than the beam keeps.
            DataError: a folder or pattern holds no image, or nothing was given.
        """
        return Results(self.predict_each(inputs, beam_size=beam_size, num_best=num_best))

    def predict_each(
        self, inputs: ImageInput | Iterable[ImageInput], *, beam_size: int | None = None, num_best: int = 1
    ) -> Iterator[Caption]:
        """Caption images like ``predict``, lazily batch by batch, for long lists."""
        check_positive("the beam size", 1 if beam_size is None else beam_size)
        check_positive("the number of captions", num_best)
        yield from answer_in_order(
            chunks_of(name_inputs(inputs), self.batch_size),
            read=lambda named: self.read(named[1], named[0]),
            run=lambda named, pixels: self.caption(
                pixels, [name for name, _ in named], beam_size=beam_size, num_best=num_best
            ),
            failed=lambda named, error: Caption(named[0], (), error=error),
        )

    def explain(self, image: ImageInput, *, caption: str | None = None) -> Explanation:
        """Caption one image, or use a given caption, and record the attention behind each word.

        Raises:
            DataError: the image cannot be read, or the caption has no word.
            ConfigError: the model attends to no image.
        """
        from vitrail.tasks.captioning.explanation import explain_pixels

        name, given = name_input(image)
        explained = explain_pixels(self, self.read(given, name), name, caption=caption)
        return over_photograph(explained, self.preprocessing.images, given)

    def read(self, image: OneImage, name: str | None = None) -> UInt8[Tensor, "3 height width"]:
        """Resize one image to the model's input size, as in training; ``name`` is for error messages."""
        return read_image(self.preprocessing.images, image, name)

    def to_batch(self, pixels: Sequence[UInt8[Tensor, "3 height width"]]) -> Tensor:
        """Normalise and stack prepared images, on the model's device."""
        return self.preprocessing.images.normalise(torch.stack(list(pixels))).to(self.device)

    @torch.inference_mode()
    def caption(
        self,
        pixels: Sequence[UInt8[Tensor, "3 height width"]],
        names: Sequence[str],
        *,
        beam_size: int | None = None,
        num_best: int = 1,
    ) -> list[Caption]:
        """Caption prepared images, at least one, as from ``read``, as one batch."""
        beam_size = max(self.settings.beam_size, num_best) if beam_size is None else beam_size
        found = find_captions(
            self.model,
            self.to_batch(pixels),
            self.vocabulary,
            self.settings,
            beam_size=beam_size,
            num_best=max(beam_size, num_best) if num_best > 1 else 1,
        )
        captions = []
        for name, best in zip(names, found, strict=True):
            texts = distinct_texts(write_captions(self.vocabulary, best), best, num_best)
            captions.append(Caption(name, tuple(texts), is_finished=best[0].is_finished))
        return captions


def caption_files(files: Sequence[str], options: FileOptions) -> FileResults:
    """Return the best captions of each file."""
    check_answer_file(options.output)
    return ranked_results(
        Captioner(options.source).predict(files, num_best=options.top or 1), "{:.2f}", score=4
    )
