"""Small explanations of every kind, made up."""

from __future__ import annotations

import torch
from PIL import Image

from vitrail.interpret import AttentionMap
from vitrail.interpret.draw import DrawnBox
from vitrail.interpret.viewer.explanation import Explanation
from vitrail.interpret.viewer.maps import Boxes, Grid, Maps, Tokens

EVIL = "</script><!--<script>alert(1)"
SOURCE, WRITTEN = ("A", "dog", EVIL, "</s>"), ("Ein", "Hund", "</s>")


def recorded(
    name: str,
    heads: int,
    queries: int | tuple[int, int],
    keys: int | tuple[int, int],
    *,
    kind: str = "self",
    seed: int = 0,
) -> AttentionMap:
    """Return random rows that sum to one; sizes with two numbers are grids."""
    sizes = [each if isinstance(each, int) else each[0] * each[1] for each in (queries, keys)]
    weights = torch.rand(1, heads, *sizes, generator=torch.Generator().manual_seed(seed)).softmax(-1)
    grid, query_grid = (None if isinstance(each, int) else each for each in (keys, queries))
    return AttentionMap(name, weights, kind, grid, 0, query_grid)


def of_image(name: str = EVIL, *, is_pyramid: bool = False) -> Explanation:
    grids = [(4, 6), (2, 3)] if is_pyramid else [(2, 5), (2, 5)]
    layers = tuple(
        recorded(f"blocks.{place}.mixer", 3 - place if is_pyramid else 3, grid, grid, seed=place)
        for place, grid in enumerate(grids)
    )
    maps = Maps(
        name="attention", title="attention", layers=layers, queries=Grid(), keys=Grid(), reader="mean"
    )
    return Explanation(
        name=name,
        title="cat 75.0%",
        picture=Image.new("RGB", (20, 8), (1, 2, 3)),
        scores=(("cat", 0.75), (EVIL, 0.25)),
        maps=(maps,),
    )


def of_boxes(name: str = EVIL, *, has_encoder: bool = True) -> Explanation:
    boxes = Boxes(
        texts=(f"{EVIL} 0.75", "cat 0.50"),
        drawn=(
            DrawnBox((0.1, 0.25, 0.5, 1.0), 0, "a 0.75"),
            DrawnBox((0.0, 0.0, 1.0, 0.5), 1, "b 0.50"),
        ),
    )
    layers = (
        recorded("decoder.0.cross_attention", 3, 2, (2, 5), kind="cross"),
        recorded("decoder.1.cross_attention", 3, 2, (1, 3), kind="cross", seed=1),
    )
    decoder = Maps(name="decoder", title="decoder", layers=layers, queries=boxes, keys=Grid())
    looked = (recorded("encoder.0.attention", 3, (3, 2), (2, 3), seed=2),)
    encoder = Maps(name="encoder", title="encoder", layers=looked, queries=Grid(), keys=Grid())
    return Explanation(
        name=name,
        title="2 boxes",
        picture=Image.new("RGB", (20, 8), (1, 2, 3)),
        maps=(decoder, encoder) if has_encoder else (decoder,),
    )


def of_caption(name: str = EVIL) -> Explanation:
    layers = tuple(
        recorded(f"decoder.{place}.cross_attention", 2, 3, (2, 3), kind="cross", seed=place)
        for place in range(2)
    )
    mean = recorded("mean over layers", 1, 3, (2, 3), kind="cross", seed=5)
    words = Tokens(("a", EVIL, "(end)"))
    maps = Maps(name="words", title="words", layers=layers, joined=(mean,), queries=words, keys=Grid())
    return Explanation(
        name=name, title=f"a {EVIL}", picture=Image.new("RGB", (20, 8), (1, 2, 3)), maps=(maps,)
    )


def of_text(name: str = f"A dog {EVIL}") -> Explanation:
    read, asked = Tokens(SOURCE), Tokens(WRITTEN)
    forced = Tokens(("<s>", *WRITTEN[:-1]))
    cross = (
        recorded("decoder.0.cross_attention", 5, 3, 4, kind="cross", seed=2),
        recorded("decoder.1.cross_attention", 5, 3, 4, kind="cross", seed=3),
    )
    return Explanation(
        name=name,
        title="Ein Hund",
        maps=(
            Maps(
                name="cross",
                title="cross",
                layers=cross,
                queries=asked,
                keys=read,
                first=1,
                note="the sharpest",
            ),
            Maps(
                name="source",
                title="source",
                layers=(recorded("encoder.0.mixer", 3, 4, 4),),
                queries=read,
                keys=read,
            ),
            Maps(
                name="target",
                title="target",
                layers=(recorded("decoder.0.self_attention", 2, 3, 3, seed=1),),
                queries=asked,
                keys=forced,
            ),
        ),
    )


EVERY = {"image": of_image, "boxes": of_boxes, "caption": of_caption, "text": of_text}
