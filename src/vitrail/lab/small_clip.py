"""A small CLIP and its synthetic data: drawn shapes with words written on them."""

from __future__ import annotations

import math
from functools import cache
from pathlib import Path
from random import Random
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Bool, UInt8
from PIL import Image, ImageDraw, ImageFont
from pydantic import Field
from torch import Tensor

from vitrail.core.config import Config
from vitrail.data.augment import shift
from vitrail.data.text.rows import bounded_row, join_rows
from vitrail.data.text.words import WordVocabulary
from vitrail.data.text_preprocessing import ImageTextPreprocessing
from vitrail.engines.cpu import accelerate
from vitrail.models.checkpoint import LoadedModel
from vitrail.models.clip import CLIPConfig
from vitrail.tasks.contrastive.objective import contrast
from vitrail.tasks.contrastive.predictor import ImageTextEncoder
from vitrail.train.optimise import Optimisers
from vitrail.train.schedule import rate_of
from vitrail.train.settings import OptimSettings

FONTS = ("DejaVuSans-Bold.ttf", "DejaVuSansMono-Bold.ttf", "DejaVuSerif-Bold.ttf")
HEIGHTS = (0.26, 0.34)  # of a word's font over the shorter side of the image
WIDEST = 0.92  # share of the width that a word may take
PLATE_SHARE = 0.5  # of the words that stand on a plate of one colour, like a label
MIN_CONTRAST = 110  # grey levels between a word and what is behind it
GREY = (0.299, 0.587, 0.114)  # luma weights of ITU-R BT.601

DETECTION_PX = (48, 96)  # shorter sides at which large and small words have strokes pixels apart
EDGE = 0.16  # least step of grey between neighbouring pixels, of 1
WINDOW = (5, 17)  # rows and columns that edges are counted in
DENSITY = 0.26  # least share of pixels with an edge; outlines have one edge or two in a row of the window


class WrittenWord(NamedTuple):
    """An image with a word written on it."""

    image: Image.Image
    box: tuple[int, int, int, int]
    """Left, top, right and bottom of the word or its plate, in pixels."""


def write_word(image: Image.Image, word: str, random: Random) -> WrittenWord:
    """Write a word with random font, size, position and colour, with or without a plate.

    Paper: Goh et al. 2021, on typographic attacks; position, font, size and colour at random as in Azuma and
    Matsui 2023, section 4.1. Departs from the paper: there, a font has 20 to 40 of 224 pixels and letters an
    outline; here it is larger, as most of our images are small, and half of the words stand on a plate.
    """
    written = image.copy()
    draw = ImageDraw.Draw(written)
    height_px = max(7, round(random.uniform(*HEIGHTS) * min(image.size)))
    name = random.choice(FONTS)
    font = _font(name, height_px)
    while height_px > 6 and draw.textbbox((0, 0), word, font=font)[2] > WIDEST * image.width:
        height_px -= 1
        font = _font(name, height_px)
    left, top, right, bottom = draw.textbbox((0, 0), word, font=font)
    pad = max(1, height_px // 6)
    width, height = round(right - left) + 2 * pad, round(bottom - top) + 2 * pad
    x = random.randint(0, max(0, image.width - width))
    y = random.randint(0, max(0, image.height - height))
    box = (x, y, min(x + width, image.width), min(y + height, image.height))
    if random.random() < PLATE_SHARE:
        plate = tuple(random.randint(0, 255) for _ in range(3))
        draw.rectangle((box[0], box[1], box[2] - 1, box[3] - 1), fill=plate)
        behind = _grey(plate)
    else:
        behind = float(np.asarray(image.crop(box).convert("L")).mean())
    draw.text((x + pad - left, y + pad - top), word, font=font, fill=_contrasting(behind, random))
    return WrittenWord(written, box)


def find_words(pixels: UInt8[Tensor, "3 height width"]) -> Bool[Tensor, "height width"]:
    """Return where words may stand: regions dense in vertical strokes.

    A heuristic without learning: words have several edges in every few pixels of a row, outlines one or two.
    It also detects fine textures.
    """
    height, width = pixels.shape[-2:]
    grey = (pixels.float() / 255 * torch.tensor(GREY)[:, None, None]).sum(dim=0)[None, None]  # 1 1 h w
    shorter = min(height, width)
    found = torch.zeros(height, width, dtype=torch.bool)
    for side in {min(side, shorter) for side in DETECTION_PX}:
        small = (max(1, round(height * side / shorter)), max(2, round(width * side / shorter)))
        reduced = F.interpolate(grey, small, mode="bilinear", antialias=True) if side < shorter else grey
        found |= F.interpolate(_dense_edges(reduced).float(), (height, width), mode="nearest")[0, 0] > 0
    return found


def hide_words(pixels: UInt8[Tensor, "3 height width"], patch_size: int) -> UInt8[Tensor, "3 height width"]:
    """Fill every patch that may hold a word with the median colour of the others.

    Images without a detected word, or with nothing but fine texture, are returned unchanged.

    Args:
        patch_size: pixels between the model's tokens.
    """
    found = find_words(pixels)
    patches = F.max_pool2d(found[None, None].float(), patch_size, ceil_mode=True)
    hidden = F.interpolate(patches, scale_factor=patch_size, mode="nearest")[0, 0]
    hidden = hidden[: found.shape[0], : found.shape[1]] > 0
    if not hidden.any() or hidden.all():
        return pixels
    colour = pixels[:, ~hidden].median(dim=1).values  # 3
    return torch.where(hidden, colour[:, None, None], pixels)


def _dense_edges(grey: Tensor) -> Tensor:
    """Return the positions whose window is dense in vertical edges; ``grey`` is (1 1 rows columns)."""
    edges = F.pad((grey[..., 1:] - grey[..., :-1]).abs() > EDGE, (0, 1)).float()
    around = (WINDOW[0] // 2, WINDOW[1] // 2)
    density = F.avg_pool2d(edges, WINDOW, stride=1, padding=around, count_include_pad=False)
    return F.max_pool2d((density >= DENSITY).float(), WINDOW, stride=1, padding=around) > 0


@cache
def _font(name: str, height_px: int) -> ImageFont.FreeTypeFont:
    import matplotlib

    folder = Path(matplotlib.get_data_path()) / "fonts" / "ttf"
    return ImageFont.truetype(str(folder / name), height_px)


def _contrasting(behind: float, random: Random) -> tuple[int, ...]:
    """Draw a colour whose grey level is far from the background's."""
    for _ in range(40):
        colour = tuple(random.randint(0, 255) for _ in range(3))
        if abs(_grey(colour) - behind) >= MIN_CONTRAST:
            return colour
    return (0, 0, 0) if behind > 127 else (255, 255, 255)


def _grey(colour: tuple[int, ...]) -> float:
    return sum(share * value for share, value in zip(GREY, colour, strict=True))


SHAPES = ("star", "moon", "ring", "cross", "house", "arrow")
COLOURS = {
    "red": (210, 45, 45),
    "green": (40, 150, 60),
    "blue": (45, 80, 205),
    "yellow": (225, 195, 40),
    "purple": (140, 60, 170),
    "orange": (235, 130, 30),
}
RINGS = {"moon": ((1.0, 255, 0.0), (0.85, 0, 0.5)), "ring": ((1.0, 255, 0.0), (0.55, 0, 0.0))}
"""Shapes of discs: radius, brightness and shift to the right, in radii of the shape."""
SCALE = 4  # shapes are drawn larger and reduced, so that their edges are smooth
NOISE = 5  # grey levels
TEMPLATE = "a photo of a {}"
TEMPLATE_WITH_WORD = "a photo of a {} with the word {word}"
OF_SHAPE = ("a photo of a {shape}", "a {colour} {shape}", "{shape}")
OF_WORD = ("the word {word}", "{word}")
OF_BOTH = ("a photo of a {shape} with the word {word}", "a {shape} with the word {word}", "{word}")
SHAPE_SHARE, WORD_SHARE = 0.3, 0.35  # of the images; the others show both


class Scene(NamedTuple):
    """A composed image and its contents."""

    image: Image.Image
    """RGB, square."""
    caption: str
    shape: str
    """Empty without a shape."""
    word: str
    """Empty without a word."""


def draw_scene(random: Random, *, size: int) -> Scene:
    """Draw a random image and its caption.

    Of images with both, one caption in three mentions the word alone, as captions on the web do for logos,
    signs and posters.
    """
    draw = random.random()
    shape, word, colour = (random.choice(each) for each in (SHAPES, SHAPES, tuple(COLOURS)))
    captions: tuple[str, ...] = OF_BOTH
    if draw < SHAPE_SHARE:
        image, word, captions = draw_shape(shape, colour, random, size=size), "", OF_SHAPE
    elif draw < SHAPE_SHARE + WORD_SHARE:
        image, shape, captions = write_word(_background(random, size), word, random).image, "", OF_WORD
    else:
        image = write_word(draw_shape(shape, colour, random, size=size), word, random).image
    caption = random.choice(captions).format(shape=shape, word=word, colour=colour)
    return Scene(image, caption, shape, word)


def draw_shape(shape: str, colour: str, random: Random, *, size: int) -> Image.Image:
    """Draw a shape of random position and size on a plain background with a little noise."""
    image = _background(random, size).resize((size * SCALE, size * SCALE), Image.Resampling.NEAREST)
    radius = random.uniform(0.26, 0.36) * size * SCALE
    x, y = (random.uniform(radius, size * SCALE - radius) for _ in range(2))
    turn = random.uniform(-0.3, 0.3)
    fill = tuple(min(255, max(0, value + random.randint(-20, 20))) for value in COLOURS[colour])
    mask = Image.new("L", image.size)
    _draw_mask(ImageDraw.Draw(mask), shape, (x, y), radius, turn)
    image.paste(Image.new("RGB", image.size, fill), mask=mask)
    return image.resize((size, size), Image.Resampling.BOX)


def to_pixels(images: list[Image.Image]) -> UInt8[Tensor, "images 3 height width"]:
    """Stack images of one size into a tensor."""
    return (
        torch.from_numpy(np.stack([np.asarray(image) for image in images])).permute(0, 3, 1, 2).contiguous()
    )


def _background(random: Random, size: int) -> Image.Image:
    base = np.array([random.randint(90, 250) for _ in range(3)])
    noise = np.random.default_rng(random.getrandbits(32)).integers(-NOISE, NOISE + 1, (size, size, 1))
    return Image.fromarray(np.clip(base + noise, 0, 255).astype(np.uint8))


def _draw_mask(
    draw: ImageDraw.ImageDraw, shape: str, centre: tuple[float, float], radius: float, turn: float
) -> None:
    x, y = centre
    if shape in RINGS:
        for share, fill, shift in RINGS[shape]:
            reach, middle = share * radius, x + shift * radius
            draw.ellipse((middle - reach, y - reach, middle + reach, y + reach), fill=fill)
        return
    turned = [
        (u * math.cos(turn) - v * math.sin(turn), u * math.sin(turn) + v * math.cos(turn))
        for u, v in _corners(shape)
    ]
    draw.polygon([(x + radius * u, y + radius * v) for u, v in turned], fill=255)


def _corners(shape: str) -> list[tuple[float, float]]:
    """Return the corners of a shape around the origin, within a distance of about one."""
    if shape == "star":
        angles = [math.pi * step / 5 - math.pi / 2 for step in range(10)]
        reach = [1.0 if step % 2 == 0 else 0.42 for step in range(10)]
        return [(r * math.cos(a), r * math.sin(a)) for r, a in zip(reach, angles, strict=True)]
    if shape == "cross":
        a = 0.32
        xs, ys = (-a, a, a, 1, 1, a, a, -a, -a, -1, -1, -a), (-1, -1, -a, -a, a, a, 1, 1, a, a, -a, -a)
        return list(zip(xs, ys, strict=True))
    if shape == "house":
        return [(0, -1), (1, -0.1), (0.7, -0.1), (0.7, 0.9), (-0.7, 0.9), (-0.7, -0.1), (-1, -0.1)]
    return [(-1, -0.25), (0.1, -0.25), (0.1, -0.8), (1, 0), (0.1, 0.8), (0.1, 0.25), (-1, 0.25)]  # arrow


GRAMMAR = ("a", "photo", "of", "the", "word", "with")
MAX_LENGTH = 14
MAX_SHIFT = 2  # pixels
WORDS = WordVocabulary((*GRAMMAR, *SHAPES, *COLOURS))


def small_config(size: int, width: int) -> CLIPConfig:
    """Return settings of a CLIP whose image tower has a convolutional stem and blocks with a class token."""
    return CLIPConfig(
        image_size=(size, size),
        embedding_dim=width,
        image_model="vit_nano",
        image_model_settings={
            "stem": {"channels": [width // 4, width // 2, width], "strides": [2, 2, 2]},
            "patch_size": 8,
            "width": width,
            "depth": 4,
            "num_heads": 4,
            "class_token": True,
            "pool": "class",
        },
        vocabulary_size=WORDS.size,
        max_length=MAX_LENGTH,
        pad_id=WORDS.pad_id,
        begin_id=WORDS.begin_id,
        end_id=WORDS.end_id,
        text_width=width,
        text_depth=2,
        text_num_heads=4,
        activation="gelu",
    )


class SmallClip(Config):
    """A CLIP that is trained on composed images; its fields are settings of those who train one."""

    size: int = Field(default=48, ge=16)
    """Side of composed images in pixels."""
    width: int = Field(default=48, ge=8, multiple_of=8)
    """Token width of the small CLIP."""
    num_scenes: int = Field(default=3000, ge=2)
    """Training images composed."""
    num_steps: int = Field(default=400, ge=1)
    batch_size: int = Field(default=96, ge=2)
    learning_rate: float = Field(default=3e-3, gt=0)
    """Peak rate of AdamW, for what Muon does not train; with warm-up and cosine decay."""

    def train_clip(self, seed: int) -> ImageTextEncoder:
        """Compose captioned images and train on them."""
        random = Random(seed)
        scenes = [draw_scene(random, size=self.size) for _ in range(self.num_scenes)]
        encoded = WORDS.encode([each.caption for each in scenes])
        tokens, lengths = join_rows(
            [bounded_row(row, WORDS, MAX_LENGTH) for row in encoded], pad_id=WORDS.pad_id
        )
        pixels = to_pixels([each.image for each in scenes])
        preprocessing = ImageTextPreprocessing(image_size=(self.size, self.size))
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            model = accelerate(small_config(self.size, self.width).build())
            generator = torch.Generator().manual_seed(int(torch.randint(2**31, ())))
            # Muon for hidden matrices: it learned the shapes in half as many steps as AdamW alone.
            settings = OptimSettings(name="muon", learning_rate=self.learning_rate, betas=(0.9, 0.98))
            optimisers = Optimisers(model, settings)
            model.train()
            for step in range(self.num_steps):
                chosen = torch.randperm(len(pixels), generator=generator)[: self.batch_size]
                images = shift(preprocessing.normalise(pixels[chosen]), MAX_SHIFT, generator)
                output = model(images, tokens[chosen], lengths[chosen])
                targets = torch.arange(len(chosen))
                both = (output.images, output.texts)
                losses, _ = contrast(*both, *both, targets, output.scale)
                torch.autograd.backward(losses.mean())
                optimisers.clip()
                optimisers.set_rate(rate_of(settings, (step + 0.5) / self.num_steps))
                optimisers.step()
        loaded = LoadedModel(
            model.eval(),
            {"name": "clip_tiny"},
            preprocessing.model_dump(mode="json"),
            [],
            {"origin": "the lab"},
        )
        return ImageTextEncoder(loaded, batch_size=256, subwords=WORDS)
