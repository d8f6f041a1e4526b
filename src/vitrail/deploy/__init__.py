"""Using trained models: predictions, boxes, captions, translations and explanations of files."""

from vitrail.deploy.box_explanation import BoxExplanation
from vitrail.deploy.caption_explanation import CaptionExplanation
from vitrail.deploy.captioner import Caption, Captioner
from vitrail.deploy.compare_boxes import compare_boxes
from vitrail.deploy.detect_files import WrittenDetections, detect_files
from vitrail.deploy.detections import Detections
from vitrail.deploy.detector import Detector
from vitrail.deploy.explain_boxes import WrittenBoxExplanations, explain_box_files
from vitrail.deploy.explain_files import WrittenExplanations, explain_files, explain_samples
from vitrail.deploy.explain_text import explain_text
from vitrail.deploy.explanation import Explanation
from vitrail.deploy.predictor import Prediction, Predictor
from vitrail.deploy.text_explanation import TextExplanation
from vitrail.deploy.translator import Translation, Translator

__all__ = [
    "BoxExplanation",
    "Caption",
    "CaptionExplanation",
    "Captioner",
    "Detections",
    "Detector",
    "Explanation",
    "Prediction",
    "Predictor",
    "TextExplanation",
    "Translation",
    "Translator",
    "WrittenBoxExplanations",
    "WrittenDetections",
    "WrittenExplanations",
    "compare_boxes",
    "detect_files",
    "explain_box_files",
    "explain_files",
    "explain_samples",
    "explain_text",
]
