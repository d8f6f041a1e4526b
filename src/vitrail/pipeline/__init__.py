"""The main job: from a path to a trained, evaluated, explained model in a run directory."""

from vitrail.pipeline.comparing import Compared, compare
from vitrail.pipeline.evaluating import evaluate
from vitrail.pipeline.preparing import Prepared, prepare
from vitrail.pipeline.request import Request
from vitrail.pipeline.training import TrainedRun, train

__all__ = ["Compared", "Prepared", "Request", "TrainedRun", "compare", "evaluate", "prepare", "train"]
