"""Draw what a trained classifier looks at: the picture of the README.

vitrail train mnist5k --budget 2m --name digits
python examples/attention_picture.py runs/digits mnist5k docs/images/attention.png
"""

from __future__ import annotations

import sys

from PIL import Image

import vitrail
from vitrail.interpret.draw import shared_limits
from vitrail.tasks.classification.predictor import Predictor

COLUMNS, SIDE, GAP = 8, 112, 6


def main(run: str, data: str, output: str) -> None:
    predictor, test = Predictor(run), vitrail.open_dataset(data).test
    chosen = {int(label): index for index, label in reversed(list(enumerate(test.labels)))}
    picture = Image.new("RGB", (COLUMNS * (SIDE + GAP) + GAP, 2 * (SIDE + GAP) + GAP), "white")
    images = [Image.fromarray(test.images[chosen[label]]) for label in sorted(chosen)[:COLUMNS]]
    explanations = [predictor.explain(image) for image in images]
    limits = shared_limits(each.heat().values for each in explanations)
    for column, each in enumerate(explanations):
        left = GAP + column * (SIDE + GAP)
        picture.paste(each.picture.resize((SIDE, SIDE), Image.Resampling.BICUBIC), (left, GAP))
        picture.paste(each.overlay(limits=limits).resize((SIDE, SIDE)), (left, 2 * GAP + SIDE))
    picture.save(output)


if __name__ == "__main__":
    main(*sys.argv[1:])
