"""Prompt templates of classes, and their ensembled embeddings."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from vitrail.core.errors import ConfigError
from vitrail.tasks.contrastive.predictor import ImageTextEncoder

PLACE = "{}"
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
        if template.count(PLACE) != 1:
            raise ConfigError(
                f"the template {template!r} has {template.count(PLACE) or 'no'} places for a name",
                expected=f"one {PLACE}, as in 'a photo of a {PLACE}.', or a list: {', '.join(NAMED)}",
                remedy=f"Write {PLACE} where the name of a class is to stand",
            )
    return tuple(templates) or PLAIN


def check_names(names: Sequence[str]) -> tuple[str, ...]:
    """Return stripped class names.

    Raises:
        ConfigError: there is none, one is empty, or two are the same.
    """
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


def fill(template: str, name: str) -> str:
    """Insert a name into a template."""
    return template.replace(PLACE, name)


def embed_classes(
    encoder: ImageTextEncoder, names: Sequence[str], templates: Sequence[str]
) -> Float[Tensor, "classes dim"]:
    """Return a normalised embedding per class, averaged over its templates.

    Args:
        encoder: of texts.

    Paper: Radford et al. 2021, section 3.1.4, "ensembling over the embedding space".

    Raises:
        DataError: a sentence is longer than the model reads.
    """
    sentences = [fill(template, name) for name in names for template in templates]
    vectors = encoder.embed_texts(sentences).unflatten(0, (len(names), len(templates)))  # classes templates d
    return F.normalize(vectors.mean(dim=1), dim=-1)
