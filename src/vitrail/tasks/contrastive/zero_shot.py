"""Zero-shot classification of images by any list of names: prompts, classifier, scores on labelled images."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import torch
import torch.nn.functional as F
from jaxtyping import Float, UInt8
from torch import Tensor, nn

from vitrail.core.errors import ConfigError, DataError
from vitrail.data.feature_cache import digest_of
from vitrail.data.inputs import OneImage
from vitrail.data.preprocessing import Preprocessing
from vitrail.models.checkpoint import LoadedModel
from vitrail.models.contract import ImageTextModel
from vitrail.tasks.classification.opening import recognises as holds_classes
from vitrail.tasks.classification.predictor import ImageClassifier
from vitrail.tasks.contract import Sentences, Task
from vitrail.tasks.contrastive.predictor import ImageTextEncoder
from vitrail.tasks.registry import TASKS, task_of_source

SLOT = "{}"
PLAIN = ("a photo of a {}.",)  # Radford et al. 2021, section 3.1.4
# Radford et al. 2021, published code: chosen among eighty for ImageNet, nearly as good as all of them.
SEVEN = (
    "itap of a {}.",
    "a bad photo of the {}.",
    "a origami {}.",
    "a photo of the large {}.",
    "a {} in a video game.",
    "art of the {}.",
    "a photo of the small {}.",
)
NAMED = {"plain": PLAIN, "seven": SEVEN}


def read_templates(texts: Sequence[str]) -> tuple[str, ...]:
    """Return the templates of texts: themselves, or a list by its name; by default the plain one.

    Raises:
        ConfigError: a template does not have exactly one placeholder.

    >>> read_templates(["a drawing of a {}", "plain"])
    ('a drawing of a {}', 'a photo of a {}.')
    """
    templates = [template for text in texts for template in NAMED.get(text, (text,))]
    for template in templates:
        if template.count(SLOT) != 1:
            raise ConfigError(
                f"the template {template!r} has {template.count(SLOT) or 'no'} placeholders for a name",
                expected=f"one {SLOT}, as in 'a photo of a {SLOT}.', or a list: {', '.join(NAMED)}",
                remedy=f"Write {SLOT} where the name of a class is to stand",
            )
    return tuple(templates) or PLAIN


def check_names(names: Sequence[str]) -> tuple[str, ...]:
    """Return stripped class names; ``ConfigError`` if there is none, one is empty, or two are the same."""
    stripped = tuple(" ".join(name.split()) for name in names)
    twice = [name for name, count in Counter(stripped).items() if count > 1]
    if not stripped or "" in stripped or twice:
        repeated = f"the class {twice[0]!r} twice" if twice else "no class"
        given = "an empty name" if "" in stripped else repeated
        raise ConfigError(
            f"{given} was given",
            expected="at least one name, none of them empty, each once",
            remedy="Name them with commas between them, as in --names apple,pear,'bunch of grapes'",
        )
    return stripped


def embed_classes(
    encoder: ImageTextEncoder, names: Sequence[str], templates: Sequence[str]
) -> Float[Tensor, "classes dim"]:
    """Return a normalised embedding per class, averaged over its templates.

    Paper: Radford et al. 2021, section 3.1.4, "ensembling over the embedding space".
    """
    sentences = [template.replace(SLOT, name) for name in names for template in templates]
    vectors = encoder.embed_texts(sentences).unflatten(0, (len(names), len(templates)))  # classes templates d
    return F.normalize(vectors.mean(dim=1), dim=-1)


class ZeroShotClassifier(ImageClassifier):
    """Classify an image by its nearest class prompt.

    Args:
        source: a CLIP, as for ``ImageTextEncoder``, or an encoder.
        templates: prompts with ``{}`` for a name, or names of lists such as ``seven``; a class is the mean
            over them.

    Raises:
        CheckpointError: the source holds no usable model of images and texts.
        ConfigError: there is no name, one is empty or repeated; or a template has no {}.
        DataError: a sentence is longer than the model reads.

    Paper: Radford et al. 2021, section 3.1.

    Example:
        >>> model = "hf:openai/clip-vit-base-patch32"
        >>> classifier = ZeroShotClassifier(model, ["a cat", "a dog"])  # doctest: +SKIP
        >>> classifier.predict(["rex.jpg"])[0].label  # doctest: +SKIP
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
        self.batch_size = self.encoder.batch_size
        self.class_embeddings = embed_classes(self.encoder, self.class_names, self.templates)

    def read(self, image: OneImage) -> UInt8[Tensor, "3 height width"]:
        return self.encoder.read(image)

    def classify(self, pixels: UInt8[Tensor, "batch 3 height width"]) -> Float[Tensor, "batch classes"]:
        embeddings = self.encoder.embed_pixels(pixels)
        return (self.encoder.scale * embeddings @ self.class_embeddings.T).softmax(dim=-1)


class NamedClasses(nn.Module):
    """A CLIP's image tower with normalised class embeddings as the head."""

    class_embeddings: Tensor

    def __init__(self, model: ImageTextModel, class_embeddings: Float[Tensor, "classes dim"]) -> None:
        super().__init__()
        self.model = model
        self.register_buffer("class_embeddings", class_embeddings)

    def forward(self, images: Float[Tensor, "batch channels height width"]) -> Float[Tensor, "batch classes"]:
        """Return scaled cosines of images and classes, in float32 even under autocast."""
        embeddings = self.model.embed_images(images)
        with torch.autocast(images.device.type, enabled=False):
            return self.model.scale * embeddings.float() @ self.class_embeddings.T


def classes_to_score(source: str) -> Task | None:
    """Return the task of labelled images, which a CLIP can be scored on; None for other data.

    Raises:
        DataError: the images have neither captions nor classes.
    """
    task = task_of_source(source)
    if task is not TASKS["classification"]:
        return None
    if Path(source).is_dir() and not holds_classes(source):
        raise DataError(
            f"the images of {source} have neither captions nor classes",
            expected="images with captions, or in a folder for each class, to score a CLIP on",
            remedy="Add them; vitrail classify and vitrail retrieve take images alone",
        )
    return task


def by_names(
    loaded: LoadedModel, classes: Sequence[str], sentences: Sentences
) -> tuple[LoadedModel, dict[str, str]]:
    """Turn a CLIP into a classifier of a data set's classes, and return its score signature.

    Without other names, underscores in those of the classes become spaces.

    Raises:
        ConfigError: there are not as many names as classes, one is empty or repeated, or a template has
            no placeholder for a name.
        DataError: a sentence is longer than the model reads.

    Paper: Radford et al. 2021, section 3.1.
    """
    names = sentences.names
    if names and len(names) != len(classes):
        raise ConfigError(
            f"{len(names)} names were given for {len(classes)} classes",
            expected=f"one for each of {', '.join(classes[:10])}{', ...' if len(classes) > 10 else ''}",
            remedy="Give them in this order",
        )
    encoder = ImageTextEncoder(loaded)
    said = check_names(names or [name.replace("_", " ") for name in classes])
    vectors = embed_classes(encoder, said, read_templates(sentences.templates))
    classifier = loaded._replace(
        model=NamedClasses(encoder.model, vectors).eval(),
        preprocessing=encoder.preprocessing.model_dump(mode="json", include=set(Preprocessing.model_fields)),
        class_names=list(classes),
    )
    signed = {"zero_shot": " / ".join(sentences.templates or PLAIN)}
    if names:
        signed["names"] = f"given@{digest_of(*names)[:16]}"
    return classifier, signed
