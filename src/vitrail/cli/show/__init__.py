"""Terminal output of the commands: tables that fit 80 columns, a progress bar, JSON."""

from vitrail.cli.show.lab import show_claims, show_measuring
from vitrail.cli.show.lines import (
    is_first_process,
    show_errors,
    show_json,
    show_line_fault,
    show_lines,
    show_results,
    show_unknown_words,
)
from vitrail.cli.show.models import show_card, show_models, show_settings
from vitrail.cli.show.running import show_report, show_serving, show_trained, show_training
from vitrail.cli.show.studies import show_comparing, show_comparison, show_faithfulness, show_images_done

__all__ = [
    "is_first_process",
    "show_card",
    "show_claims",
    "show_comparing",
    "show_comparison",
    "show_errors",
    "show_faithfulness",
    "show_images_done",
    "show_json",
    "show_line_fault",
    "show_lines",
    "show_measuring",
    "show_models",
    "show_report",
    "show_results",
    "show_serving",
    "show_settings",
    "show_trained",
    "show_training",
    "show_unknown_words",
]
