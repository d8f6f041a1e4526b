"""Choose an experiment for sentence pairs, with reasons.

The constants were measured on validation parts; ``docs/log.md`` has the experiments.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from vitrail.engines.loading import load_start
from vitrail.models.checkpoint import LoadedModel
from vitrail.tasks.contract import ModelRequest, name_model, precision_reason
from vitrail.tasks.translation.dataset import PairDataset
from vitrail.tasks.translation.settings import PairDataSettings, TranslationExperiment
from vitrail.train.machine import inspect_machine
from vitrail.train.run import Choice
from vitrail.train.settings import OptimSettings, TrainSettings

FEW_PAIRS, MANY_PAIRS = 10_000, 500_000
PROCESSOR_TOKENS, ACCELERATOR_TOKENS = 2048, 16_384
SMALL_CORPUS = {"norm": "pre", "positions": "rotary", "dropout": 0.2}
SAMPLED_BELOW = 1_000_000  # pairs; with more, subword dropout hardly helps


class Scale(NamedTuple):
    """A model and a vocabulary that suit a number of pairs."""

    model: str
    changes: dict[str, Any]
    vocabulary_size: int
    reason: str


def choose(
    dataset: PairDataset, asked: TranslationExperiment, request: ModelRequest
) -> tuple[TranslationExperiment, list[Choice]]:
    """Return an experiment with one step, and every choice in it with its reason."""
    machine, pretrained = inspect_machine(), load_start(asked.weights, request.name, task="translation")
    scale = _choose_scale(len(dataset.train), request.name, pretrained)
    chosen = {name: value for name, value in scale.changes.items() if request.get(name) is None}
    if any(request.get(name) not in (None, "attention") for name in ("mixer", "decoder_mixer")):
        chosen.pop("positions", None)  # of self-attention
    config = pretrained.config if pretrained else request.configure(scale.model, **chosen)
    data = PairDataSettings(
        source=dataset.source,
        languages=dataset.languages,
        vocabulary_size=scale.vocabulary_size,
        subword_dropout=0.1 if len(dataset.train) < SAMPLED_BELOW else 0.0,
    )
    batch_size = PROCESSOR_TOKENS if machine.device.type == "cpu" else ACCELERATOR_TOKENS
    train = TrainSettings(steps=1, batch_size=batch_size, precision=machine.precision)
    if pretrained is None:
        optim = OptimSettings(name="muon", learning_rate=3e-3, matrix_learning_rate=0.02, betas=(0.9, 0.98))
        optim_reason = "fits small models in fewer steps than AdamW"
    else:
        optim = OptimSettings(name="adamw", learning_rate=3e-4, betas=(0.9, 0.98))
        optim_reason = "fine-tuning changes learned weights little"
    pairs = f"{len(dataset.train):,} training pairs"
    choices = [
        Choice("data.languages", "-".join(dataset.languages), "the languages of the data"),
        Choice("model.name", scale.model, scale.reason),
        *(
            Choice(f"model.{name}", f"{value}", "learns a small corpus in fewer steps")
            for name, value in chosen.items()
        ),
        Choice("data.vocabulary_size", str(scale.vocabulary_size), f"{pairs}: subwords seen often enough"),
        Choice("data.subword_dropout", f"{data.subword_dropout:g}", f"{pairs}: each is cut in many ways"),
        Choice("train.batch_size", str(batch_size), f"tokens of a step on {machine.device_name}"),
        Choice("train.precision", machine.precision, precision_reason(machine.precision)),
        Choice("optim.name", optim.name, optim_reason),
        Choice("task.beam_size", "5", "for the final score; validations are greedy"),
    ]
    experiment = TranslationExperiment(data=data, model=config, optim=optim, train=train)
    return experiment, choices


def _choose_scale(num_pairs: int, model: str | None, pretrained: LoadedModel | None) -> Scale:
    if num_pairs < FEW_PAIRS:
        scale = Scale("transformer_tiny", SMALL_CORPUS, 2000, "few pairs: the smallest model")
    elif num_pairs < MANY_PAIRS:
        scale = Scale("transformer_tiny", SMALL_CORPUS, 6000, "a small corpus: the small model")
    else:
        scale = Scale("transformer_base", {}, 32_000, "a large corpus: the base model")
    name, reason = name_model(pretrained, model, scale.model, scale.reason)
    size = pretrained.config.target_vocabulary_size if pretrained else scale.vocabulary_size
    return scale if reason == scale.reason else Scale(name, {}, size, reason)
