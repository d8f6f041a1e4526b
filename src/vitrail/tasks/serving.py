"""What the server must be told of a kind of model."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple, Protocol, runtime_checkable

from pydantic import Field

from vitrail.core.config import Config
from vitrail.core.errors import ConfigError
from vitrail.data.images import open_image
from vitrail.engines.opening import Source, open_source
from vitrail.models.checkpoint import LoadedModel
from vitrail.tasks.refusals import RefusalError, unknown_field
from vitrail.tasks.registry import task_of_model

MOST_BEAMS = 16  # a beam takes memory and time in proportion
EXPLANATION_BYTES = 12_000_000  # compressed: all heads of a ViT-B/16 at 224 pixels take some 4 MB


ONLY_EXPLAINING = ("method", "class_name", "target")  # options of /explain alone


class Given(NamedTuple):
    """One input of a request."""

    name: str
    """What errors and answers call it."""
    content: bytes | str
    """The bytes of an image file, or a text."""


class Options(Config):
    """What a request asks for beside its inputs; a kind of model refuses those that it does not know."""

    top: int | None = Field(None, ge=1, le=1000)
    """How many classes a prediction names; of a classifier."""
    threshold: float | None = Field(None, ge=0, le=1, allow_inf_nan=False)
    """The least score of a box; of a detector."""
    beam_size: int | None = Field(None, ge=1, le=MOST_BEAMS)
    """Hypotheses that are kept while searching; of a translator or captioner."""
    length_penalty: float | None = Field(None, ge=-10, le=10, allow_inf_nan=False)
    """Exponent of the length; of a translator."""
    num_best: int | None = Field(None, ge=1, le=MOST_BEAMS)
    """Translations of each text, or captions of each image; of a translator or captioner."""
    method: Literal["rollout", "attention", "relevance", "gradient_input"] | None = None
    """What an explanation shows first, none that takes many passes and holds up others; of a classifier."""
    class_name: str | None = None
    """The class whose relevance or gradient is shown, the most probable otherwise; of a classifier."""
    target: str | None = None
    """The translation or caption that is explained, not the model's own; of a translator or captioner."""
    labels: str | None = None
    """Names to choose from, with commas between them; of a CLIP."""


class EngineChoice(NamedTuple):
    """What runs the models of images, as ``Predictor`` takes it."""

    engine: str | None = None
    """Its name, or auto; None runs torch, and an exported model by the engine of its format."""
    precision: str | None = None
    """Of the matrix products."""
    batch_size: int = 8
    """Most images that are computed together, for which the fastest is chosen."""
    trust: bool = False
    """Whether models exported for torch may be read, which can run code of whoever wrote them."""


@runtime_checkable
class Servable(Protocol):
    """A model that is served; all but ``answer`` and ``explain`` may run in several threads at once."""

    task: str
    """Name of its task."""
    option_names: tuple[str, ...]
    """The fields of ``Options`` that it knows."""

    def describe(self) -> dict[str, Any]:
        """Return what is told of it, as JSON values."""
        ...

    def warm_up(self, num_inputs: int) -> None:
        """Compute a batch, so that the first request of its size takes no longer than the others."""
        ...

    def read(self, given: Given, options: Options, max_pixels: int) -> Any:
        """Prepare one input.

        Raises:
            RefusalError: the input is of another kind.
            DataError: it cannot be read.
        """
        ...

    def group(self, options: Options) -> Hashable:
        """Return what must be equal for inputs that are computed together."""
        ...

    def answer(self, works: Sequence[Any]) -> Sequence[Any]:
        """Compute prepared inputs of one group together; each result is JSON values, or an error."""
        ...

    def explain(self, work: Any) -> Any:
        """Compute one prepared input and record what its answer was read from."""
        ...

    def pack(self, explanation: Any) -> dict[str, Any]:
        """Return an explanation as JSON values, as the script of the page reads them."""
        ...


def open_servable(source: str | Path | LoadedModel, choice: EngineChoice) -> Servable:
    """Load a model of any task.

    Args:
        source: a run directory, the folder of a saved model or of an exported one, a published model, or one
            that is loaded already.
        choice: what runs it.

    Raises:
        CheckpointError: there is no usable model.
        ConfigError: we do not have the published architecture, or the engine is missing or does not fit.
    """
    opened = open_source(source)
    # What was measured of a model, by which the fastest is chosen, lies where it was loaded from.
    return task_of_model(opened).serve(source if choice.engine == "auto" else opened, choice)


def open_without_engine(source: Source, choice: EngineChoice, what: str) -> LoadedModel:
    """Open a model that torch alone can run.

    Args:
        source: the model.
        choice: what the server was started with.
        what: what the model is called in an error.

    Raises:
        ConfigError: an engine or a precision was chosen.
    """
    opened = open_source(source)
    if choice.engine is not None or choice.precision is not None:
        raise ConfigError(
            f"an engine or a precision was chosen for the {what} {opened.model_settings.get('name', '')}",
            expected="models of images alone, where one is chosen",
            remedy=f"Serve the {what} without, in a server of its own",
        )
    assert isinstance(opened, LoadedModel), "only classifiers and detectors are exported as packages"
    return opened


def check_options(served: Servable, options: Options, *, is_explanation: bool) -> None:
    """Refuse what a kind of model does not know, or what only an explanation needs.

    Raises:
        RefusalError: an option is of another kind.
    """
    for name in options.model_dump(exclude_none=True):
        known = [each for each in served.option_names if is_explanation or each not in ONLY_EXPLAINING]
        if name not in known:
            raise unknown_field(name, ["model", *known], "this model here does not take")


def read_options(tree: dict[str, Any]) -> Options:
    """Return the options of a request.

    Raises:
        RefusalError: a field is unknown, or a value is out of its range.
    """
    for name in tree:
        if name not in Options.model_fields:
            raise unknown_field(name, ["model", *Options.model_fields], "no model takes")
    try:
        return Options.from_tree(tree)
    except ConfigError as error:
        raise RefusalError(
            422, error.given, expected="values in their range", remedy="Correct them; /docs lists the ranges"
        ) from None


def image_content(given: Given, max_pixels: int) -> bytes:
    """Return the bytes of an image whose header says that it is not too large.

    Raises:
        RefusalError: the input is a text.
        TooManyPixelsError: the image is too large.
        DataError: it is no image, or damaged.
    """
    if isinstance(given.content, str):
        raise RefusalError(
            422,
            f"{given.name} is a text, and this model takes images",
            expected="the bytes of an image file",
            remedy="Send an image, or choose a translator with model=",
        )
    with open_image(given.content, name=given.name, max_pixels=max_pixels):
        return given.content
