"""Claim: purely positional attention learns the patch association that a convolution is given."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import product
from typing import Literal, NamedTuple, get_args

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from pydantic import Field, model_validator
from torch import Tensor, nn

from vitrail.lab import harness as lab
from vitrail.nn.attention import attention_weights

SIDE = 2  # of a square


class PatchSets(NamedTuple):
    """Structured images: one set of patches shows the class, all others distract.

    Paper: Jelassi, Sander and Li 2022, section 2. Departs from the paper: the numbers are ours. There, a
    patch's noise is about as long as the feature; here, it is longer.
    """

    belongs: Bool[Tensor, "patches patches"]
    """Which patches share a set; all sets are equally large."""
    feature: Float[Tensor, " dim"]
    """Shown by the patches of the class's set, with the sign of the class."""
    noise: float
    """Standard deviation of the patch values around the feature."""
    distraction: float
    """Probability that a patch outside the image's set shows the feature, with either sign."""
    generator: torch.Generator

    def draw(
        self, num_images: int
    ) -> tuple[Float[Tensor, "{num_images} patches dim"], Float[Tensor, " {num_images}"]]:
        """Return new images as patches, with random classes: -1 or 1."""
        num_patches, generator = len(self.belongs), self.generator
        sign = 2.0 * torch.randint(2, (num_images,), generator=generator) - 1
        member = torch.randint(num_patches, (num_images,), generator=generator)  # sets are equally large
        is_signal = self.belongs[member]
        chance = torch.rand(num_images, num_patches, generator=generator)
        distracting = (chance < self.distraction / 2).float() - (chance > 1 - self.distraction / 2).float()
        shown = torch.where(is_signal, sign[:, None], distracting)
        noise = torch.randn(num_images, num_patches, len(self.feature), generator=generator)
        noise = noise - (noise @ self.feature)[..., None] * self.feature
        return shown[..., None] * self.feature + self.noise * noise, sign


class PositionalAverage(nn.Module):
    """Sum activations of averaged projected patches; the averaging weights are positional or given.

    Args:
        dim: values of a patch.
        linear: factor of the linear part of the activation x^3 + linear x.
        given: averaging weights, up to a factor; None learns them from positions.

    Paper: Jelassi, Sander and Li 2022, section 2, the simplified ViT, with an activation of degree 3. Departs
    from the paper: Adam takes the place of gradient descent.
    """

    def __init__(
        self, num_patches: int, dim: int, *, linear: float, given: Tensor | None, generator: torch.Generator
    ) -> None:
        super().__init__()
        self.linear = linear
        self.projection = nn.Parameter(torch.randn(dim, generator=generator) / dim)
        self.given = None if given is None else given / given.sum(dim=1, keepdim=True)
        if given is None:
            drawn = 0.1 * torch.randn(1, 1, num_patches, num_patches, generator=generator)
            self.positions = nn.Parameter(drawn)

    def weights(self) -> Float[Tensor, "patches patches"]:
        """Return the averaging weights, the same for every image."""
        if self.given is not None:
            return self.given
        return attention_weights(self.positions, self.positions, scale=1.0)[0, 0]

    def forward(self, patches: Float[Tensor, "batch patches dim"]) -> Float[Tensor, " batch"]:
        x = (patches @ self.projection) @ self.weights().T  # b n
        return (x**3 + self.linear * x).sum(dim=1)


def squares_of(side: int) -> Bool[Tensor, "patches patches"]:
    """Return which patches share a square of 2 x 2."""
    rows, columns = torch.meshgrid(torch.arange(side), torch.arange(side), indexing="ij")
    square = (rows // SIDE * side + columns // SIDE).flatten()
    return square[:, None] == square


def unit_vector(dim: int, generator: torch.Generator) -> Float[Tensor, " dim"]:
    """Return a random direction."""
    vector = torch.randn(dim, generator=generator)
    return vector / vector.norm()


@torch.no_grad()
def associated_share(weights: Tensor, belongs: Tensor) -> float:
    """Return the share of rows whose largest weights are those of the set (patch association)."""
    best = torch.zeros_like(belongs).scatter(1, weights.topk(SIDE * SIDE, dim=1).indices, True)
    return float((best == belongs).all(dim=1).float().mean())


def attend_as_convolution(
    image: Float[Tensor, "dim rows columns"], kernel: Float[Tensor, "out dim size size"], alpha: float
) -> Float[Tensor, "out rows columns"]:
    """Compute a convolution by attention in which each head looks at one neighbour of every position.

    The score of key j for query i is ``alpha (2 (p_i + d) p_j - p_j^2)``, largest where j is at offset d
    from i: the softmax selects that position as alpha grows. At the border a head looks at the nearest
    position instead, not at zeros.

    Args:
        kernel: of odd size, as ``conv2d`` takes it.
    """
    reach = kernel.shape[-1] // 2
    rows, columns = image.shape[-2:]
    positions = torch.tensor(list(product(range(rows), range(columns))), dtype=torch.float32)  # n 2
    offsets = torch.tensor(list(product(range(-reach, reach + 1), repeat=2)), dtype=torch.float32)  # h 2
    looked_at = positions + offsets[:, None]  # h n 2
    query = alpha * torch.cat((2 * looked_at, -torch.ones_like(looked_at[..., :1])), dim=-1)
    squares = positions.square().sum(dim=1, keepdim=True)
    key = torch.cat((positions, squares), dim=-1).expand(len(offsets), -1, -1)
    weights = attention_weights(query[None], key[None], scale=1.0)[0]  # h n n
    values = torch.einsum("dn,odh->hno", image.flatten(1), kernel.flatten(2))  # h n o
    return (weights @ values).sum(dim=0).T.reshape(-1, rows, columns)


def distance_to_convolution(alpha: float, *, side: int, dim: int, size: int, seed: int) -> float:
    """Return the largest error against a random convolution, in its standard deviations, off the border."""
    generator = torch.Generator().manual_seed(seed)
    image = torch.randn(dim, side, side, generator=generator)
    kernel = torch.randn(dim, dim, size, size, generator=generator)
    convolved = F.conv2d(image[None], kernel, padding=size // 2)[0]
    inside = slice(size // 2, side - size // 2)
    error = (attend_as_convolution(image, kernel, alpha) - convolved)[:, inside, inside]
    return float(error.abs().max() / convolved[:, inside, inside].std())


Structure = Literal["squares", "scattered"]
STRUCTURES: tuple[Structure, ...] = get_args(Structure)
LayerName = Literal["positional attention", "convolution"]
LAYERS: tuple[LayerName, ...] = get_args(LayerName)
KERNEL, EXACT = 3, 1e-3  # rows and columns; share of a standard deviation
GOOD, ASSOCIATED, GAIN = 0.95, 0.9, 0.1


class WrittenRow(lab.SeededRow):
    """A convolution, and attention constructed to compute it: one head for each kernel position."""

    alpha: float
    """Factor of the scores, which are purely positional."""
    error: float
    """Largest difference away from the border, over the standard deviation of the result."""


class StructureRow(lab.SeededRow):
    """A layer trained on images whose classes show in sets of patches that belong together."""

    structure: Structure
    """Where the patches of a set are: in squares of 2 x 2, or anywhere."""
    layer: LayerName
    """Attention by learned positions, or sums over the squares of 2 x 2."""
    accuracy: float
    """Test accuracy."""
    associated: float
    """Share of the patches whose most attended patches are exactly those of their set."""


class TransferRow(lab.SeededRow):
    """Transfer: another feature in the same sets, learned from few images."""

    structure: Structure
    """Where the patches of a set are."""
    attention: Literal["kept", "new"]
    """Positions kept from the first training, or learned anew."""
    num_images: int
    """Training images."""
    accuracy: float
    """Test accuracy."""


SpatialRow = WrittenRow | StructureRow | TransferRow


class ConvolutionByAttention(lab.SeededClaim):
    """Train positional attention on structured images, compare its association, and transfer it."""

    statement = (
        "Attention whose weights depend on positions alone can be a convolution; it learns by gradient "
        "descent which patches belong together, whether they are neighbours or not, and then needs fewer "
        "images for other features."
    )
    source = (
        "Cordonnier, Loukas and Jaggi 2020, theorem 1 (convolution); Jelassi, Sander and Li 2022, sections 2 "
        "to 4 (patch association)"
    )
    published = (
        '"While the problem admits multiple solutions that generalize, we show that our model implicitly '
        "learns the spatial structure of the dataset while generalizing. We finally prove that learning the "
        "structure helps to sample-efficiently transfer to downstream datasets that share the same structure "
        'as the pre-training one but with different features."'
    )
    criterion = (
        f"Holds if (0) attention with one head for each position of a {KERNEL} x {KERNEL} kernel "
        f"errs by at most {EXACT:g} of the convolution's standard deviation away from the edge, with every "
        f"seed; (1) positional attention classifies at least {GOOD:.0%} of new images with every seed, and "
        f"associates on average at least {ASSOCIATED:.0%} of the patches with exactly their sets; and (2) "
        f"kept positions classify on average at least {GAIN:.0%} of the images more than new ones, learned "
        "from few images of another feature; all for both structures. Partly if (0) and (1) are so."
    )

    alphas: tuple[float, ...] = Field(default=(1, 2, 4, 8, 12), min_length=1)
    """Factors of the constructed scores; the largest one is judged."""
    side: int = Field(default=6, ge=2, multiple_of=SIDE)
    """Rows and columns of patches."""
    dim: int = Field(default=24, ge=2)
    """Values of a patch."""
    noise: float = Field(default=1.0, gt=0)
    """Standard deviation of the patch values around the feature."""
    distraction: float = Field(default=0.3, ge=0, lt=1)
    """Probability that a patch outside the image's set shows the feature, with either sign."""
    linear: float = Field(default=0.1, ge=0)
    """Factor of the linear part of the activation x^3 + linear x."""
    num_steps: int = Field(default=1500, ge=1)
    batch_size: int = Field(default=128, ge=1)
    learning_rate: float = Field(default=1e-2, gt=0)
    """Of Adam, constant."""
    num_few: int = Field(default=40, ge=1)
    """Images of the transfer."""
    few_steps: int = Field(default=300, ge=1)
    """Full-batch steps of the transfer."""
    num_tested: int = Field(default=2000, ge=1)
    """Test images."""

    @model_validator(mode="after")
    def _check_sets(self) -> ConvolutionByAttention:
        if self.side == SIDE:
            raise ValueError(f"side {self.side} is a single set; at least two are needed")
        return self

    def run(self, progress: lab.OnProgress, *, seed: int) -> list[SpatialRow]:
        seeds = self.seeds(seed)
        sizes = {"side": self.side + 2, "dim": self.dim, "size": KERNEL}
        rows: list[SpatialRow] = [
            WrittenRow(alpha=alpha, seed=each, error=distance_to_convolution(alpha, seed=each, **sizes))
            for each, alpha in product(seeds, self.alphas)
        ]
        for each, structure in lab.tracked(progress, list(product(seeds, STRUCTURES)), "{1}, seed {0}"):
            rows += self._measure(structure, each)
        return rows

    def judge(self, rows: Sequence[SpatialRow]) -> lab.Judgement:
        learned = lab.rows_of(rows, StructureRow, layer="positional attention")
        accuracy = min(lab.column(learned, "accuracy"))
        associated = min(lab.mean(learned, "associated", structure=each) for each in STRUCTURES)
        written = lab.rows_of(rows, WrittenRow)
        error = max(lab.column(written, "error", alpha=max(lab.column(written, "alpha"))))
        is_learned = error <= EXACT and accuracy >= GOOD and associated >= ASSOCIATED
        transfers = lab.rows_of(rows, TransferRow)
        gains = {}
        for each in STRUCTURES:
            of_sets = lab.rows_of(transfers, TransferRow, structure=each)
            kept, new = (lab.mean(of_sets, "accuracy", attention=name) for name in ("kept", "new"))
            gains[each] = kept - new
        gained = ", ".join(f"{structure} {gain:+.1%}" for structure, gain in gains.items())
        convolution = lab.rows_of(rows, StructureRow, layer="convolution")
        squares, scattered = (lab.mean(convolution, "accuracy", structure=each) for each in STRUCTURES)
        return lab.Judgement(
            verdict=lab.decide(holds=is_learned and min(gains.values()) >= GAIN, partly=is_learned),
            measured=f"Written down, it errs by {error:.1e} of a convolution's deviation. Learned, at worst "
            f"{accuracy:.1%} of new images are right, and on average {associated:.1%} of the patches "
            f"associated; a convolution over squares has {squares:.1%} on squares and {scattered:.1%} on "
            f"scattered sets. Kept positions gain {gained}",
        )

    def draw(self, rows: Sequence[SpatialRow]) -> lab.Figure:
        figure, (written, *panels) = lab.new_panels(4, columns=4)
        errors = lab.rows_of(rows, WrittenRow)
        written.scatter(lab.column(errors, "alpha"), lab.column(errors, "error"), color=lab.COLOURS[0], s=14)
        lab.label(
            written,
            x="factor of the scores",
            y="greatest error",
            title="a convolution, written down",
            log="y",
        )
        learned, few = lab.rows_of(rows, StructureRow), lab.rows_of(rows, TransferRow)
        layers = {name: name for name in LAYERS}
        kinds = {"kept": "kept positions", "new": "new positions"}
        of_set = "associated with exactly their set"
        few_title = f"another feature, {few[0].num_images} images"
        for axes, shown, field, by, names, y, title in (
            (panels[0], learned, "accuracy", "layer", layers, "share of new images", "accuracy"),
            (panels[1], learned, "associated", "layer", layers, "share of patches", of_set),
            (panels[2], few, "accuracy", "attention", kinds, "share of new images", few_title),
        ):
            lab.draw_dots(axes, shown, ("structure",), field, by=by, names=names)
            lab.label(axes, x="", y=y, title=title)
            axes.set_xlim(-0.5, len(STRUCTURES) - 0.5)
            axes.set_ylim(0, 1.03)
            axes.legend(frameon=False, fontsize=8, loc="lower left")
        return figure

    def _measure(self, structure: Structure, seed: int) -> list[SpatialRow]:
        generator = torch.Generator().manual_seed(seed)
        squares = squares_of(self.side)
        order = torch.randperm(len(squares), generator=generator)
        belongs = squares if structure == "squares" else squares[order][:, order]
        images, others = self.new_sets(belongs, generator), self.new_sets(belongs, generator)
        few = others.draw(self.num_few)
        rows: list[SpatialRow] = []
        models = [self.new_model(None, generator), self.new_model(squares, generator)]
        for layer, model in zip(LAYERS, models, strict=True):
            self.learn(model, lambda: images.draw(self.batch_size), self.num_steps)
            rows.append(
                StructureRow(
                    structure=structure,
                    layer=layer,
                    seed=seed,
                    accuracy=_accuracy(model, images.draw(self.num_tested)),
                    associated=associated_share(model.weights(), belongs),
                )
            )
        kept = self.new_model(models[0].weights().detach(), generator)
        for name, model in (("kept", kept), ("new", self.new_model(None, generator))):
            self.learn(model, lambda: few, self.few_steps)
            fields = {"structure": structure, "attention": name, "seed": seed, "num_images": self.num_few}
            rows.append(TransferRow(**fields, accuracy=_accuracy(model, others.draw(self.num_tested))))
        return rows

    def new_sets(self, belongs: Tensor, generator: torch.Generator) -> PatchSets:
        """Return structured images with a new feature."""
        feature = unit_vector(self.dim, generator)
        return PatchSets(belongs, feature, self.noise, self.distraction, generator)

    def new_model(self, given: Tensor | None, generator: torch.Generator) -> PositionalAverage:
        """Return an untrained layer; ``given`` are its averaging weights, or None to learn them."""
        return PositionalAverage(self.side**2, self.dim, linear=self.linear, given=given, generator=generator)

    def learn(self, model: nn.Module, draw: Callable[[], tuple[Tensor, Tensor]], num_steps: int) -> None:
        """Train a layer on drawn images."""
        optimiser = torch.optim.Adam(model.parameters(), lr=self.learning_rate)
        for _ in range(num_steps):
            patches, sign = draw()
            loss = F.softplus(-sign * model(patches)).mean()
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()


CLAIM = ConvolutionByAttention()


@torch.no_grad()
def _accuracy(model: nn.Module, drawn: tuple[Tensor, Tensor]) -> float:
    patches, sign = drawn
    return float((model(patches) * sign > 0).float().mean())
