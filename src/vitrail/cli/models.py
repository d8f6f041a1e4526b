"""Commands about models: models, convert."""

from __future__ import annotations

from pathlib import Path

from vitrail.cli.app import Flag, app
from vitrail.core.errors import ConfigError


@app.command(help_epilogue="Example: vitrail models swin_t --size 384x512")
def models(
    name: str | None = None, /, *, size: str | None = None, settings: Flag = False, json: Flag = False
) -> int:
    """List the models, or describe one: parts, costs at a size, and compatible weights.

    Args:
        name: Model to describe.
        size: Input size for costs: pixels such as 384 or 384x512, subwords read and written such as 64x48.
        settings: Show the settings of the model that --set model.NAME=VALUE changes.
        json: Print JSON instead of tables.
    """
    if size is not None and (name is None or settings):
        raise ConfigError(
            f"--size {size} was given without a card to show",
            expected="--size with the name of a model, and without --settings",
            remedy="Name the model, as in vitrail models swin_t --size 384",
        )
    if settings and (name is None or json):
        raise ConfigError(
            "--settings was given without a name or with --json",
            expected="--settings with the name of a model alone",
            remedy="Name the model, as in vitrail models swin_t --settings",
        )

    from vitrail.cli import show as terminal
    from vitrail.models.describe import describe, list_cards, parse_size

    if name is None:
        terminal.show_json(list(list_cards())) if json else terminal.show_models()
    elif settings:
        terminal.show_settings(name)
    else:
        card = describe(name, size=None if size is None else parse_size(size))
        terminal.show_json(card.model_dump(mode="json")) if json else terminal.show_card(card)
    return 0


@app.command(help_epilogue="Example: vitrail convert timm:vit_small_patch16_224.augreg_in1k models/vit_s16")
def convert(source: str, output: Path, /, *, model: str | None = None) -> int:
    """Convert published weights to a folder that every command takes as RUN.

    Args:
        source: timm:NAME, hf:OWNER/NAME or a folder of that layout, torchvision:NAME, file:PATH.
        output: New folder, with model.safetensors and model.json.
        model: The model of `vitrail models` that a file's weights belong to, where they fit several.
    """
    from vitrail.cli import show as terminal
    from vitrail.models.weights.published import convert_to_folder

    terminal.show_lines(convert_to_folder(source, output, model=model))
    return 0
