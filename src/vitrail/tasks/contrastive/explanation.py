"""Explain a CLIP: the image regions behind each text, and the attention of the image tower."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from jaxtyping import Float, UInt8
from torch import Tensor

from vitrail.interpret.relevance import text_classifier
from vitrail.interpret.viewer.explanation import Explanation
from vitrail.tasks.classification.explanation import explain_image
from vitrail.tasks.contrastive.predictor import ImageTextEncoder
from vitrail.tasks.contrastive.zero_shot import NamedClasses

MOST_SHOWN = 8  # texts that a page shows with maps, nearest first


def explain_pixels(
    encoder: ImageTextEncoder,
    pixels: UInt8[Tensor, "3 height width"],
    name: str,
    texts: Sequence[str],
    embeddings: Float[Tensor, "texts dim"],
) -> Explanation:
    """Compare a prepared image with texts in the role of classes.

    The scores are the softmax of the scaled cosines; a single text has its cosine in the title instead.
    """
    vectors = embeddings.to(encoder.device).clone()  # a copy outside inference mode, for gradients
    # Models with an image tower of their own are traced layer by layer, others by gradients and occlusion.
    classifier = (
        text_classifier(encoder.model, vectors, encoder.scale)
        if hasattr(encoder.model, "image")
        else NamedClasses(encoder.model, vectors).eval()
    )
    images = encoder.preprocessing.normalise(pixels[None].to(encoder.device))
    explained = explain_image(classifier, images, pixels, name=name, class_names=tuple(texts), top=MOST_SHOWN)
    shown = tuple(text for text, _ in explained.scores)
    explained = replace(explained, classes=shown, first="relevance" if explained.suits_relevance else "")
    if len(texts) > 1:
        return explained
    cosine = float(encoder.embed_pixels(pixels[None])[0] @ embeddings[0].cpu())
    return replace(explained, title=f"{texts[0]}: cosine {cosine:.3f}", scores=())
