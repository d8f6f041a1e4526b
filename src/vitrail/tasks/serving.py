"""The interface between models and the server."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, Literal, NamedTuple, Protocol, runtime_checkable

from pydantic import Field
from torch import nn

from vitrail.core.config import Config
from vitrail.core.errors import CheckpointError, ConfigError, VitrailError, did_you_mean
from vitrail.core.registry import Registry
from vitrail.data.images import TooManyPixelsError, open_image
from vitrail.engines.loading import Source, open_source
from vitrail.interpret import has_attention
from vitrail.interpret.viewer.explanation import Explanation
from vitrail.models.checkpoint import LoadedModel
from vitrail.models.decoding import PenaltyForm
from vitrail.tasks.registry import task_of_model

MOST_BEAMS = 16  # memory and time grow with the beam


ONLY_EXPLAINING = ("method", "class_name", "target")  # options of /explain alone


class Given(NamedTuple):
    """One input of a request."""

    name: str
    """Name in messages and results."""
    content: bytes | str
    """An image file's bytes, or a text."""


class Options(Config):
    """Options of a request; a task refuses those it does not support."""

    top: int | None = Field(None, ge=1, le=1000)
    """Classifiers only: number of classes per prediction."""
    threshold: float | None = Field(None, ge=0, le=1, allow_inf_nan=False)
    """Detectors only: confidence threshold."""
    beam_size: int | None = Field(None, ge=1, le=MOST_BEAMS)
    """Translators and captioners only: beam size."""
    length_penalty: float | None = Field(None, ge=-10, le=10, allow_inf_nan=False)
    """Translators only: exponent of the length."""
    penalty_form: PenaltyForm | None = None
    """Translators only: what the exponent is of, the length (power) or GNMT's (5 + length) / 6 (gnmt)."""
    num_best: int | None = Field(None, ge=1, le=MOST_BEAMS)
    """Translators and captioners only: number of outputs per input."""
    method: Literal["rollout", "attention", "relevance", "gradient_input"] | None = None
    """Classifiers only: what an explanation shows first; no methods of many passes."""
    class_name: str | None = None
    """Classifiers only: class of class-specific methods; by default the most probable."""
    target: str | None = None
    """Translators and captioners only: the text to explain instead of the model's own."""
    labels: str | None = None
    """CLIP only: comma-separated class names."""


class Work(NamedTuple):
    """One prepared input."""

    name: str
    prepared: Any
    options: Options
    content: bytes = b""
    """The image file."""


class EngineChoice(NamedTuple):
    """The engine of image models, as for ``Predictor``."""

    engine: str | None = None
    """Name or auto; None means torch, or the engine of an exported model's format."""
    precision: str | None = None
    """Of the matrix products."""
    batch_size: int = 8
    """Maximum batch size, for which the fastest is chosen."""
    trust: bool = False
    """Whether models exported for torch may be loaded, which can run their author's code."""


@runtime_checkable
class Servable(Protocol):
    """A served model; all methods but ``answer`` and ``explain`` are thread-safe."""

    task: str
    """Name of its task."""
    option_names: tuple[str, ...]
    """The supported fields of ``Options``."""
    shared_options: tuple[str, ...] = ()
    """Those that all inputs of a batch must have alike."""

    def describe(self) -> dict[str, Any]:
        """Return facts about the model as JSON values."""

    def warm_up(self, num_inputs: int) -> None:
        """Run a batch, so that the first request of its size is not slower than others."""

    def read(self, given: Given, options: Options, max_pixels: int) -> Work:
        """Prepare one input.

        Raises:
            RefusalError: the input is of another type.
            DataError: it cannot be read.
        """

    def group(self, options: Options) -> Hashable:
        """Return the batching key: equal for inputs that can share a batch."""
        return tuple(getattr(options, name) for name in self.shared_options)

    def answer(self, works: Sequence[Work]) -> Sequence[Any]:
        """Run prepared inputs of one group together; each result is JSON values, or an error."""

    def explain(self, work: Work) -> Explanation:
        """Run one prepared input and explain its result."""


def _collect(module: ModuleType) -> dict[str, Any]:
    return {module.SERVED.task: module.SERVED}


SERVED: Registry[Any] = Registry("served task", "vitrail.tasks", _collect, module="served")
"""What serves the models of each task: ``SERVED`` in its folder's ``served.py``."""


def open_servable(source: str | Path | LoadedModel, choice: EngineChoice) -> Servable:
    """Load a model of any task.

    Args:
        source: a run directory, the folder of a saved or exported model, a published model, or a loaded one.

    Raises:
        CheckpointError: there is no usable model.
        ConfigError: we do not have the published architecture, or the engine is missing or does not fit.
    """
    opened = open_source(source)
    # Benchmark results, which decide the fastest engine, are stored where the model was loaded from.
    served: Servable = SERVED[task_of_model(opened).name](
        source if choice.engine == "auto" else opened, choice
    )
    return served


def open_without_engine(source: Source, choice: EngineChoice, what: str) -> LoadedModel:
    """Open a model that only torch can run.

    Args:
        what: name of the model in an error.

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
    """Refuse options that a task does not support, or that only explanations have.

    Raises:
        RefusalError: an option is of another kind.
    """
    for name in options.model_dump(exclude_none=True):
        known = [each for each in served.option_names if is_explanation or each not in ONLY_EXPLAINING]
        if name not in known:
            raise unknown_field(name, ["model", *known], "this model here does not take")


def read_options(tree: dict[str, Any]) -> Options:
    """Parse the options of a request.

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


def image_work(given: Given, options: Options, max_pixels: int, read: Callable[..., Any]) -> Work:
    """Prepare an image, after checking the size in its header.

    Args:
        read: takes the bytes of an image file, and its ``name`` for messages.

    Raises:
        RefusalError: the input is a text.
        TooManyPixelsError: the image is too large.
        DataError: it is not an image, or damaged.
    """
    if isinstance(given.content, str):
        raise RefusalError(
            422,
            f"{given.name} is a text, and this model takes images",
            expected="the bytes of an image file",
            remedy="Send an image, or choose a translator with model=",
        )
    with open_image(given.content, name=given.name, max_pixels=max_pixels):
        return Work(given.name, read(given.content, name=given.name), options, given.content)


def given_text(given: Given) -> str:
    """Return a text; ``RefusalError`` if the input is a file."""
    if isinstance(given.content, str):
        return given.content
    raise RefusalError(
        422,
        f"{given.name} is a file, and this model takes text",
        expected='JSON such as {"text": "A dog runs."}, or a body of text/plain',
        remedy="Send a text, or choose a model of images with model=",
    )


def common_facts(owner: Any) -> dict[str, Any]:
    """Return family, engine and precision of a predictor, and whether it has attention to show."""
    engine, model = getattr(owner, "engine", None), in_torch(owner)
    return {
        "family": getattr(getattr(model, "config", None), "family", None),
        "engine": getattr(engine, "name", "torch"),
        "precision": getattr(engine, "precision", "float32"),
        "can_explain": model is not None and has_attention(model),
    }


def in_torch(owner: Any) -> nn.Module | None:
    """Return the torch module of a predictor, needed for explanations; None for an exported model."""
    try:
        return owner.model
    except ConfigError:  # exported model
        return None


class RefusalError(VitrailError):
    """A request that cannot be answered.

    Args:
        status: of HTTP.
        retry_after_s: when the same request may succeed, if ever.
    """

    def __init__(
        self, status: int, given: str, *, expected: str, remedy: str, retry_after_s: int | None = None
    ) -> None:
        super().__init__(given, expected=expected, remedy=remedy)
        self.status, self.retry_after_s = status, retry_after_s


class ClientGoneError(Exception):
    """The client has hung up."""


def status_of(error: VitrailError) -> int:
    """Return the HTTP status of an error."""
    if isinstance(error, RefusalError):
        return error.status
    if isinstance(error, TooManyPixelsError):
        return 413
    return 500 if isinstance(error, CheckpointError) else 422


def error_tree(error: VitrailError) -> dict[str, Any]:
    """Return an error as JSON values."""
    return {
        "error": {
            "status": status_of(error),
            "message": str(error),
            "given": error.given,
            "expected": error.expected,
            "remedy": error.remedy,
        }
    }


def too_many_inputs(count: int, most: int) -> RefusalError:
    """Refuse more inputs than the queue can ever hold."""
    return RefusalError(
        413,
        f"the request has {count} inputs",
        expected=f"at most {most} in one request, as many as may wait for a model",
        remedy="Divide it, or start the server with a larger --queue",
    )


def unknown_field(name: str, known: list[str], who: str) -> RefusalError:
    """Refuse an unknown field of a request.

    Args:
        known: the supported fields.
        who: beginning of the message, such as "this model does not take".
    """
    return RefusalError(
        422,
        f"the request has a field {name!r}, which {who}",
        expected=f"the fields {', '.join(known)}",
        remedy=did_you_mean(name, known),
    )
