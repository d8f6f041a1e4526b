"""Using trained models: predictions and explanations of files."""

from vitrail.deploy.explain_files import WrittenExplanations, explain_files, explain_samples
from vitrail.deploy.explanation import Explanation
from vitrail.deploy.predictor import Prediction, Predictor

__all__ = [
    "Explanation",
    "Prediction",
    "Predictor",
    "WrittenExplanations",
    "explain_files",
    "explain_samples",
]
