"""Score a finished model on any data that suits it."""

from __future__ import annotations

from pathlib import Path

from vitrail.deploy.loading import load_any
from vitrail.errors import ConfigError
from vitrail.evaluate import Report
from vitrail.evaluate import evaluate as score
from vitrail.pipeline.kinds import kind_of_model
from vitrail.pipeline.preparing import open_as, open_checked
from vitrail.recipes.machine import inspect_machine
from vitrail.train.processes import single_process
from vitrail.train.run import Run


def evaluate(
    run: str | Path, source: str | Path, *, split: str = "test", batch_size: int | None = None
) -> Report:
    """Score a model on one split of a data set; classes are matched by name.

    The data that a run was trained on is divided, and computed in the precision, as it was then.

    Args:
        run: a run directory or the folder of a saved model.
        source: any data that ``vitrail.train`` takes.
        split: ``train``, ``validation`` or ``test``.
        batch_size: images, or tokens, of one forward pass; it does not change the scores.

    Raises:
        CheckpointError: there is no usable model.
        DataError: the data cannot be used, or has classes that the model does not know.
        ConfigError: there is no such split.
    """
    loaded = load_any(run)
    kind = kind_of_model(loaded)
    machine = inspect_machine()
    trained = Run.open(Path(run)).experiment if (Path(run) / "config.json").is_file() else None
    if trained is not None and trained.data.source == str(source):
        dataset, _ = open_as(trained, single_process())
    else:
        dataset, _ = open_checked(kind, str(source), kind.data_settings(loaded), single_process())
    if split not in dataset.splits:
        raise ConfigError(
            f"there is no split {split!r}", expected=" or ".join(dataset.splits), remedy="Choose one of these"
        )
    scoring = kind.score(loaded, dataset, split)
    return score(
        scoring.task,
        loaded.model.to(machine.device),
        scoring.source,
        batch_size=batch_size or scoring.batch_size,
        device=machine.device,
        precision=machine.precision if trained is None else trained.train.precision,
        class_names=tuple(loaded.class_names),
        signature=scoring.signature,
    )
