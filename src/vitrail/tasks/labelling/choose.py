"""Choose an experiment for labelled texts, with reasons.

The constants were measured on validation parts; ``docs/log.md`` has the experiments.
"""

from __future__ import annotations

from vitrail.engines.loading import load_start
from vitrail.models.contract import LabellingModelConfig
from vitrail.tasks.contract import ModelRequest, name_model, precision_reason
from vitrail.tasks.labelling.dataset import TextDataset
from vitrail.tasks.labelling.settings import LabellingExperiment, TextDataSettings
from vitrail.train.machine import inspect_machine
from vitrail.train.run import Choice
from vitrail.train.settings import OptimSettings, TrainSettings

FEW_TEXTS, MANY_TEXTS = 3_000, 100_000
CPU_TOKENS, ACCELERATOR_TOKENS = 2048, 8192


def choose(
    dataset: TextDataset, asked: LabellingExperiment, request: ModelRequest
) -> tuple[LabellingExperiment, list[Choice]]:
    """Return an experiment with one step, and every choice in it with its reason."""
    machine, pretrained = inspect_machine(), load_start(asked.weights, request.name, task="labelling")
    count = len(dataset.train)
    wanted = {"num_classes": len(dataset.class_names), "labels": dataset.labels}
    why = "two blocks of attention suit thousands of texts"
    name, reason = name_model(pretrained, request.name, "text_transformer", why)
    config: LabellingModelConfig
    if pretrained is not None:
        config = pretrained.config.with_changes(wanted)
        optim = OptimSettings(name="adamw", learning_rate=1e-4, weight_decay=0.01)
        optim_reason = "fine-tuning changes learned weights little"
    else:
        config = request.configure(name, **wanted)
        optim = OptimSettings(name="adamw", learning_rate=2e-3, betas=(0.9, 0.98))
        optim_reason = "most weights are embeddings, which AdamW moves word by word"
    data = TextDataSettings(
        source=dataset.source,
        # cased letters show names and sentence starts, which tags need
        lower_case=dataset.labels == "sentence",
        vocabulary_size=2000 if count < FEW_TEXTS else 8000 if count < MANY_TEXTS else 32_000,
    )
    train = TrainSettings(
        steps=1,
        batch_size=CPU_TOKENS if machine.device.type == "cpu" else ACCELERATOR_TOKENS,
        precision=machine.precision,
        keep="best" if len(dataset.validation) else "last",
    )
    experiment = LabellingExperiment(data=data, model=config, optim=optim, train=train)
    texts = f"{count:,} training texts"
    return experiment, [
        Choice("model.name", name, reason),
        Choice("model.labels", dataset.labels, "what the data labels"),
        Choice("data.vocabulary_size", str(data.vocabulary_size), f"{texts}: subwords seen often enough"),
        Choice("data.lower_case", str(data.lower_case).lower(), "tags depend on capitals, topics hardly do"),
        Choice("train.batch_size", str(train.batch_size), f"tokens of a step on {machine.device_name}"),
        Choice("train.precision", machine.precision, precision_reason(machine.precision)),
        Choice("train.keep", train.keep, "little text is learned by heart before the training ends"),
        Choice("optim.name", optim.name, optim_reason),
    ]
