"""Using trained models: predictions, translations and explanations of files."""

from vitrail.deploy.explain_files import WrittenExplanations, explain_files, explain_samples
from vitrail.deploy.explain_text import explain_text
from vitrail.deploy.explanation import Explanation
from vitrail.deploy.predictor import Prediction, Predictor
from vitrail.deploy.text_explanation import TextExplanation
from vitrail.deploy.translator import Translation, Translator

__all__ = [
    "Explanation",
    "Prediction",
    "Predictor",
    "TextExplanation",
    "Translation",
    "Translator",
    "WrittenExplanations",
    "explain_files",
    "explain_samples",
    "explain_text",
]
