"""What the commands show on a terminal: tables that fit 80 columns, a progress bar, JSON."""

from vitrail.cli.show.answers import show_detections, show_predictions
from vitrail.cli.show.comparing import show_comparing, show_comparison
from vitrail.cli.show.faithfulness import show_faithfulness, show_images_done
from vitrail.cli.show.image_text import show_retrieval
from vitrail.cli.show.lab import show_claims, show_measuring
from vitrail.cli.show.lines import is_first_process, show_errors, show_json, show_line_fault, show_lines
from vitrail.cli.show.models import show_card, show_models, show_settings
from vitrail.cli.show.serving import show_serving
from vitrail.cli.show.training import show_report, show_trained, show_training

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
