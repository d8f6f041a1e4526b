"""How faithful the explanations of a finished model are, measured on data that suits it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
from jaxtyping import UInt8
from torch import Tensor

from vitrail.core.errors import ConfigError
from vitrail.data.sampling import SampleSource
from vitrail.engines.loading import load_any
from vitrail.interpret.faithfulness import Faithfulness
from vitrail.studies.faithfulness_measuring import measure_faithfulness
from vitrail.tasks.classification.predictor import Predictor
from vitrail.tasks.evaluating import open_scoring


def faithfulness(
    run: str | Path,
    source: str | Path,
    *,
    split: str = "test",
    num_images: int = 64,
    methods: Sequence[str] | None = None,
    filling: str = "blur",
    num_steps: int = 16,
    merge_tokens: int = 0,
    seed: int = 0,
    on_image: Callable[[int], None] | None = None,
) -> Faithfulness:
    """Run the perturbation test on images of a data set that are drawn from one of its splits.

    Args:
        run: a run directory or the folder of a saved model.
        source: any images that ``vitrail.train`` takes, with the same classes.
        split: ``train``, ``validation`` or ``test``.
        num_images: how many are drawn; all, where there are fewer.
        methods: names as for ``Explanation.relevance``; None means those that suit the model and take no more
            than a pass forward and back.
        filling: ``blur`` or ``mean``: what is seen where an image is covered.
        num_steps: steps of each curve.
        merge_tokens: tokens of an image that each block of the model merges with others.
        seed: of the drawing.
        on_image: called with the number of images done.

    Raises:
        CheckpointError: there is no usable model, or none of images.
        ConfigError: there is no such split or method, or a method does not suit the model.
        DataError: the data cannot be used.
    """
    if num_images < 1:
        raise ConfigError(f"{num_images} images were to be drawn", expected="1 or more", remedy="Draw 64")
    loaded = load_any(run)
    predictor = Predictor(loaded, merge_tokens=merge_tokens)
    samples = open_scoring(run, loaded, source, split).source
    drawn = np.random.default_rng(seed).permutation(len(samples))[:num_images]
    return measure_faithfulness(
        predictor,
        _pixels(samples, drawn.tolist()),
        methods=methods,
        filling=filling,
        num_steps=num_steps,
        on_image=on_image,
    )


def _pixels(samples: SampleSource, indices: Sequence[int]) -> Iterator[UInt8[Tensor, "3 height width"]]:
    return (samples.load(index, None).image for index in indices)
