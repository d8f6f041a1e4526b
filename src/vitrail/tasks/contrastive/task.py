"""The contrastive image-text task (CLIP)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from torch import nn

from vitrail.core.config import Config
from vitrail.data.dataset import ImageDataset
from vitrail.data.preprocessing import sample_images
from vitrail.data.text.subwords import SentencePieceSubwords, vocabulary_from_files, vocabulary_to_files
from vitrail.data.text_preprocessing import ImageTextPreprocessing
from vitrail.engines.loading import load_start
from vitrail.models.checkpoint import LoadedModel
from vitrail.models.contract import ImageTextModelConfig, ModelConfig
from vitrail.report.sections import RunRecord
from vitrail.tasks import contract
from vitrail.tasks.captioning.dataset import CaptionDataset
from vitrail.tasks.captioning.doctor import check_captions, view_captions
from vitrail.tasks.captioning.opening import open_captions
from vitrail.tasks.contrastive.choose import choose
from vitrail.tasks.contrastive.objective import ContrastiveObjective
from vitrail.tasks.contrastive.predictor import ImageTextEncoder
from vitrail.tasks.contrastive.report import conclude_retrieval, find_examples, write_retrieval_report
from vitrail.tasks.contrastive.samples import ImageTextSource
from vitrail.tasks.contrastive.settings import ContrastiveExperiment, ImageTextDataSettings
from vitrail.tasks.contrastive.zero_shot import by_names, classes_to_score
from vitrail.tasks.explaining import ExplainOptions, WrittenExplanations, explain_files
from vitrail.train.objective import Objective
from vitrail.train.settings import Experiment


class ContrastiveTask(contract.Task):
    """The task ``contrastive``; see ``vitrail.tasks.contract.Task``."""

    name = "contrastive"
    experiment: type[Experiment] = ContrastiveExperiment
    models: type[ModelConfig] = ImageTextModelConfig
    headline = "mean_recall"
    contents = "images with captions"
    usage = "vitrail classify, which takes names of classes, or vitrail retrieve"
    predictor = ImageTextEncoder
    explain_options = frozenset({"text", "layer", "head", "method", "class_name"})
    has_several_texts = True
    evaluation_batch = 128
    fewest = 2  # the loss compares each image with the captions of others
    check = staticmethod(check_captions)
    choose = staticmethod(choose)
    view = staticmethod(view_captions)
    conclude = staticmethod(conclude_retrieval)
    max_epochs = 200
    pretrained = "hf:openai/clip-vit-base-patch32"
    evaluation_share = 0.4  # of a train step, for a forward pass of the same batch

    def data_settings(self, source: str, loaded: LoadedModel | None = None) -> ImageTextDataSettings:
        """The image size is not used for opening: a model reads images of any size."""
        return ImageTextDataSettings(source=source, image_size=(64, 64))

    def open(self, data: ImageTextDataSettings) -> CaptionDataset:
        return open_captions(data.source, settings=data)

    def settle(self, experiment: ContrastiveExperiment, dataset: CaptionDataset) -> contract.Settled:
        """Learn the vocabulary or take that of the weights; set vocabulary and image size of the model."""
        pretrained = load_start(experiment.weights, experiment.model.name, task=self.name)
        if pretrained is not None:
            return contract.Settled(experiment, dict(pretrained.files))
        data = experiment.data
        prepare = ImageTextPreprocessing(image_size=data.image_size, lower_case=data.lower_case).prepare
        texts = [text for captions in dataset.train.captions for text in captions]
        subwords = SentencePieceSubwords.train(prepare(texts), size=data.vocabulary_size)
        fitting = {
            "model.image_size": experiment.data.image_size,
            "model.vocabulary_size": subwords.size,
            "model.pad_id": subwords.pad_id,
            "model.begin_id": subwords.begin_id,
            "model.end_id": subwords.end_id,
        }
        return contract.Settled(experiment.with_changes(fitting), vocabulary_to_files(subwords))

    def assemble(
        self, experiment: ContrastiveExperiment, dataset: CaptionDataset, files: Mapping[str, bytes]
    ) -> contract.Parts:
        train, subwords = experiment.train, vocabulary_from_files(files)
        pretrained = load_start(experiment.weights, experiment.model.name, task=self.name)
        preprocessing = _prepare_preprocessing(experiment.data, dataset, pretrained)
        model = contract.build_model(experiment, pretrained)
        source = partial(
            ImageTextSource,
            subwords=subwords,
            preprocessing=preprocessing,
            max_length=experiment.model.max_length,
        )
        objective = ContrastiveObjective(preprocessing, experiment.augment, pad_id=subwords.pad_id)
        return contract.Parts(
            dataset=dataset,
            objective=objective,
            final_objective=objective,
            model=model,
            train=source(dataset.train, augment=experiment.augment, cache=train.cache),
            validation=source(dataset.validation, cache=train.cache),
            test=source(dataset.test),
            preprocessing=preprocessing,
            files=files,
        )

    def sign(self, dataset: CaptionDataset, split: str, preprocessing: Config) -> dict[str, str]:
        """Include the number of candidate images and captions."""
        assert isinstance(preprocessing, ImageTextPreprocessing)
        searched = dataset.splits[split]
        among = {"among": f"{len(searched)} images with {searched.num_captions} captions"}
        return dataset.sign(split) | among | contract.sign_images(preprocessing)

    def score(self, loaded: LoadedModel, dataset: CaptionDataset, split: str) -> contract.Scoring:
        preprocessing = ImageTextPreprocessing.from_tree(loaded.preprocessing)
        subwords = vocabulary_from_files(loaded.files)
        longest: int = loaded.config.max_length
        return contract.Scoring(
            ContrastiveObjective(preprocessing, pad_id=subwords.pad_id),
            ImageTextSource(dataset.splits[split], subwords, preprocessing, max_length=longest),
            self.sign(dataset, split, preprocessing),
            self.evaluation_batch,
        )

    def task_to_score(self, loaded: LoadedModel, source: str, sentences: contract.Sentences) -> contract.Task:
        """Return classification for labelled images, which a CLIP classifies zero-shot."""
        return classes_to_score(source) or super().task_to_score(loaded, source, sentences)

    def adapt(
        self, loaded: LoadedModel, dataset: ImageDataset, sentences: contract.Sentences
    ) -> tuple[LoadedModel, dict[str, str]]:
        return by_names(loaded, dataset.class_names, sentences)

    def write_page(self, path: Path, loaded: LoadedModel, parts: contract.Parts, record: RunRecord) -> None:
        write_retrieval_report(path, record, find_examples(loaded, parts.dataset.test))

    def explain(
        self, loaded: LoadedModel, inputs: Sequence[str], options: ExplainOptions
    ) -> WrittenExplanations:
        encoder = ImageTextEncoder(loaded)
        return explain_files(lambda path: encoder.explain(path, options.text), inputs, options)

    def run_once(self, objective: Objective, model: nn.Module, batch: Any) -> None:
        """The loss takes one text per image, the evaluator several."""
        objective.evaluator().update(model, batch)

    def image_encoder(self, loaded: LoadedModel) -> nn.Module:
        model: Any = loaded.model
        image: nn.Module = model.image
        return image


TASK = ContrastiveTask()


def _prepare_preprocessing(
    data: ImageTextDataSettings, dataset: CaptionDataset, pretrained: LoadedModel | None
) -> ImageTextPreprocessing:
    """Return the preprocessing of the pretrained weights, if any, else that of the data."""
    if pretrained is not None:
        own = ImageTextPreprocessing.from_tree(pretrained.preprocessing)
        return own.with_changes({"image_size": data.image_size, "resize": data.resize})
    preprocessing = ImageTextPreprocessing(
        image_size=data.image_size, resize=data.resize, lower_case=data.lower_case
    )
    return preprocessing.with_statistics(sample_images(dataset.train.images, preprocessing))
