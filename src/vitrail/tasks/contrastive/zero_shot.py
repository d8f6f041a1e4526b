"""Zero-shot classification of images by any list of names."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import torch
from jaxtyping import Float, UInt8
from torch import Tensor, nn

from vitrail.data.inputs import ImageInput, name_inputs
from vitrail.data.preprocessing import Preprocessing
from vitrail.models.checkpoint import LoadedModel
from vitrail.models.contract import ImageTextModel
from vitrail.tasks.classification.predictor import Prediction
from vitrail.tasks.contrastive.predictor import ImageTextEncoder
from vitrail.tasks.contrastive.prompts import PLAIN, check_names, embed_classes, read_templates
from vitrail.tasks.predicting import answer_in_order, chunks_of


class ZeroShotClassifier:
    """Classify an image by its nearest class prompt.

    Args:
        source: a CLIP, as for ``ImageTextEncoder``, or an encoder.
        templates: prompts with ``{}`` for a name, or names of lists such as ``seven``; a class is the mean
            over them.

    Raises:
        CheckpointError: the source holds no usable model of images and texts.
        ConfigError: there is no name, one is empty or there twice; or a template has no place for a name.
        DataError: a sentence is longer than the model reads.

    Paper: Radford et al. 2021, section 3.1.

    Example:
        >>> classifier = ZeroShotClassifier("hf:openai/clip-vit-base-patch32", ["a cat", "a dog"])
        >>> classifier.predict(["rex.jpg"])[0].label
        'a dog'
    """

    def __init__(
        self,
        source: str | Path | LoadedModel | ImageTextEncoder,
        class_names: Sequence[str],
        *,
        templates: Sequence[str] = PLAIN,
        device: str | torch.device | None = None,
        batch_size: int = 32,
    ) -> None:
        self.class_names, self.templates = check_names(class_names), read_templates(templates)
        self.encoder = (
            source
            if isinstance(source, ImageTextEncoder)
            else ImageTextEncoder(source, device=device, batch_size=batch_size)
        )
        self.class_embeddings = embed_classes(self.encoder, self.class_names, self.templates)

    def predict(self, inputs: ImageInput | Iterable[ImageInput], *, top: int = 5) -> list[Prediction]:
        """Classify images; an unusable file yields a prediction with an error instead of raising.

        Args:
            inputs: files, folders, glob patterns, Pillow images or uint8 arrays, or one of them.
            top: number of classes per prediction.

        Raises:
            DataError: a folder or pattern holds no image, or nothing was given.
        """
        return list(self.predict_each(inputs, top=top))

    def predict_each(
        self, inputs: ImageInput | Iterable[ImageInput], *, top: int = 5
    ) -> Iterator[Prediction]:
        """Classify images like ``predict``, lazily batch by batch, for long lists.

        Raises:
            DataError: as ``predict``.
        """
        yield from answer_in_order(
            chunks_of(name_inputs(inputs), self.encoder.batch_size),
            read=lambda named: self.encoder.read(named[1]),
            run=lambda named, pixels: [
                Prediction.most_probable(name, row, self.class_names, top)
                for (name, _), row in zip(named, self.probabilities(torch.stack([*pixels])), strict=True)
            ],
            failed=lambda named, error: Prediction(named[0], (), error),
        )

    def probabilities(
        self, pixels: UInt8[Tensor, "images 3 height width"]
    ) -> Float[Tensor, "images classes"]:
        """Return the class probabilities of prepared images."""
        embeddings = self.encoder.embed_pixels(pixels)
        return (self.encoder.scale * embeddings @ self.class_embeddings.T).softmax(dim=-1)


class NamedClasses(nn.Module):
    """A CLIP's image tower with class embeddings as the head.

    Args:
        model: of images and texts.
        class_embeddings: normalised.
    """

    class_embeddings: Tensor

    def __init__(self, model: ImageTextModel, class_embeddings: Float[Tensor, "classes dim"]) -> None:
        super().__init__()
        self.model = model
        self.register_buffer("class_embeddings", class_embeddings)

    def forward(self, images: Float[Tensor, "batch channels height width"]) -> Float[Tensor, "batch classes"]:
        """Return scaled cosines of images and classes, in float32 even under autocast."""
        embeddings = self.model.embed_images(images)
        with torch.autocast(images.device.type, enabled=False):
            return self.model.logit_scale.exp() * embeddings.float() @ self.class_embeddings.T


def as_classifier(
    loaded: LoadedModel, class_names: Sequence[str], said: Sequence[str], templates: Sequence[str]
) -> LoadedModel:
    """Turn a CLIP into an image classifier.

    Args:
        loaded: an image-text model.
        class_names: names in predictions.
        said: names in prompts, in the same order.

    Raises:
        CheckpointError: the model compares no images with texts.
        ConfigError: a name is empty or there twice.
        DataError: a sentence is longer than the model reads.

    Paper: Radford et al. 2021, section 3.1.
    """
    encoder = ImageTextEncoder(loaded)
    vectors = embed_classes(encoder, check_names(said), templates)
    prepared = encoder.preprocessing.model_dump(mode="json", include=set(Preprocessing.model_fields))
    return loaded._replace(
        model=NamedClasses(encoder.model, vectors).eval(),
        preprocessing=prepared,
        class_names=list(class_names),
    )
