"""What the commands show on a terminal: tables that fit 80 columns, a progress bar, JSON."""

from vitrail.terminal.answers import show_detections, show_predictions
from vitrail.terminal.comparing import show_comparing, show_comparison
from vitrail.terminal.faithfulness import show_faithfulness, show_images_done
from vitrail.terminal.image_text import show_retrieval
from vitrail.terminal.lab import show_claims, show_measuring
from vitrail.terminal.lines import is_first_process, show_errors, show_json, show_line_fault, show_lines
from vitrail.terminal.models import show_card, show_models, show_settings
from vitrail.terminal.serving import show_serving
from vitrail.terminal.training import show_report, show_trained, show_training

__all__ = [
    "is_first_process",
    "show_card",
    "show_claims",
    "show_comparing",
    "show_comparison",
    "show_detections",
    "show_errors",
    "show_faithfulness",
    "show_images_done",
    "show_json",
    "show_line_fault",
    "show_lines",
    "show_measuring",
    "show_models",
    "show_predictions",
    "show_report",
    "show_retrieval",
    "show_serving",
    "show_settings",
    "show_trained",
    "show_training",
]
