"""The image classification task."""

from __future__ import annotations

import glob
from collections.abc import Mapping, Sequence
from copy import copy
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn

from vitrail.core.config import Config
from vitrail.data.dataset import ImageDataset, ImageSplit
from vitrail.data.file_places import is_image_name
from vitrail.data.inputs import list_files
from vitrail.data.preprocessing import Preprocessing, sample_images
from vitrail.data.source import ImageSource
from vitrail.engines.loading import load_start
from vitrail.models.checkpoint import LoadedModel
from vitrail.models.contract import ImageModelConfig, ModelConfig
from vitrail.report.sections import RunRecord
from vitrail.tasks import contract
from vitrail.tasks.classification.benchmarks import benchmark_of
from vitrail.tasks.classification.choose import choose, choose_mixing
from vitrail.tasks.classification.doctor import check as check_images
from vitrail.tasks.classification.doctor import view_images
from vitrail.tasks.classification.noisy_student import add_pseudo_labels
from vitrail.tasks.classification.objective import ClassificationObjective
from vitrail.tasks.classification.opening import open_dataset, open_to_score, recognises
from vitrail.tasks.classification.predictor import Predictor, classify_files
from vitrail.tasks.classification.published_scores import as_published, check_published
from vitrail.tasks.classification.report import conclude_classes, report_pictures, write_report
from vitrail.tasks.classification.settings import ClassificationExperiment, ImageDataSettings
from vitrail.tasks.explaining import ExplainOptions, WrittenExplanations, explain_files
from vitrail.train.settings import Experiment

IMAGENET_CLASSES = 1000


class ClassificationTask(contract.Task):
    """The task ``classification``; see ``vitrail.tasks.contract.Task``."""

    name = "classification"
    experiment: type[Experiment] = ClassificationExperiment
    models: type[ModelConfig] = ImageModelConfig
    headline = "accuracy"
    contents = "images with classes"
    usage = "vitrail predict, in Python vitrail.Predictor"
    predictor = Predictor
    export_formats = frozenset({"onnx", "openvino", "torch"})
    explain_options = frozenset({"layer", "head", "method", "class_name"})
    predict_options = frozenset({"top", "engine", "precision", "trust"})
    evaluation_batch = 256
    recognises = staticmethod(recognises)
    check = staticmethod(check_images)
    choose = staticmethod(choose)
    view = staticmethod(view_images)
    predict_files = staticmethod(classify_files)
    conclude = staticmethod(conclude_classes)
    as_published = staticmethod(as_published)
    max_epochs = 200
    pretrained = "timm:vit_small_patch16_224.augreg_in21k_ft_in1k"
    evaluation_share = 0.35  # of a train step, for a forward pass of the same batch; 0.3 measured

    def data_settings(self, source: str, loaded: LoadedModel | None = None) -> ImageDataSettings:
        """The image size is not used for opening: a model reads images of any size."""
        return ImageDataSettings(source=source, image_size=(32, 32))

    def open(self, data: ImageDataSettings) -> ImageDataset:
        dataset = open_dataset(data.source, settings=data)
        check_published(dataset)
        return dataset

    def choose_for_epochs(
        self,
        experiment: ClassificationExperiment,
        asked: ClassificationExperiment,
        parts: contract.Parts,
        epochs: float,
    ) -> tuple[Experiment, contract.Parts, list[contract.Choice]]:
        is_upright = parts.dataset.upright
        augment, choices = choose_mixing(experiment.augment, epochs, is_upright=is_upright)
        augment = augment.with_given(asked.augment)
        objective: Any = copy(parts.objective)
        objective.augment = augment
        return (
            experiment.model_copy(update={"augment": augment}),
            parts._replace(objective=objective),
            choices,
        )

    def settle(self, experiment: ClassificationExperiment, dataset: ImageDataset) -> contract.Settled:
        """Fit the model's positions to the final input size, and check its settings.

        Learned positions keep their grid; the model interpolates them.
        """
        if experiment.weights is None:
            experiment = experiment.with_changes({"model.image_size": experiment.data.image_size})
        return contract.Settled(experiment, {})

    def assemble(
        self, experiment: ClassificationExperiment, dataset: ImageDataset, files: Mapping[str, bytes]
    ) -> contract.Parts:
        data, train = experiment.data, experiment.train
        contract.check_num_classes(experiment, dataset)
        pretrained = load_start(experiment.weights, experiment.model.name, task=self.name)
        labelled, targets, task = dataset.train, None, experiment.task
        if task.teacher is not None and task.unlabelled is not None:
            labelled, targets = add_pseudo_labels(
                dataset.train,
                dataset.class_names,
                teacher=task.teacher,
                unlabelled=task.unlabelled,
                least_confidence=task.least_confidence,
            )
        preprocessing = _prepare_preprocessing(data, dataset, pretrained)
        objective = ClassificationObjective(
            len(dataset.class_names),
            preprocessing,
            augment=experiment.augment,
            label_smoothing=task.label_smoothing,
            targets=targets,
            with_class_mean=self.headline_of(dataset) == "mean_per_class_accuracy",
        )
        model = contract.build_model(experiment, pretrained)
        return contract.Parts(
            dataset=dataset,
            objective=objective,
            final_objective=objective,
            model=model,
            train=ImageSource(labelled, preprocessing, experiment.augment, cache=train.cache),
            validation=ImageSource(dataset.validation, preprocessing, cache=train.cache),
            test=ImageSource(dataset.test, preprocessing),
            preprocessing=preprocessing,
            class_names=dataset.class_names,
            files={},
        )

    def sign(self, dataset: ImageDataset, split: str, preprocessing: Config) -> dict[str, str]:
        assert isinstance(preprocessing, Preprocessing)
        return dataset.sign(split) | contract.sign_images(preprocessing)

    def score(self, loaded: LoadedModel, dataset: ImageDataset, split: str) -> contract.Scoring:
        """Match the classes by name."""
        preprocessing = Preprocessing.from_tree(loaded.preprocessing)
        labelled = _match_classes(dataset, dataset.splits[split], loaded.class_names)
        return contract.Scoring(
            ClassificationObjective(len(loaded.class_names), preprocessing),
            ImageSource(labelled, preprocessing),
            self.sign(dataset, split, preprocessing),
            self.evaluation_batch,
        )

    def open_to_score(self, data: ImageDataSettings) -> ImageDataset:
        dataset = open_to_score(data.source, settings=data)
        check_published(dataset)
        return dataset

    def headline_of(self, dataset: ImageDataset) -> str:
        benchmark = benchmark_of(dataset.source)
        return self.headline if benchmark is None else benchmark.metric

    def export_objective(self, loaded: LoadedModel) -> ClassificationObjective:
        return ClassificationObjective(len(loaded.class_names), Preprocessing.from_tree(loaded.preprocessing))

    def write_page(self, path: Path, loaded: LoadedModel, parts: contract.Parts, record: RunRecord) -> None:
        pictures = report_pictures(loaded, parts.test, parts.dataset.test, record.report)
        write_report(path, record, *pictures)

    def explain(
        self, loaded: LoadedModel, inputs: Sequence[str], options: ExplainOptions
    ) -> WrittenExplanations:
        return explain_files(Predictor(loaded).explain, inputs, options)

    def sample_data(self, loaded: LoadedModel, source: str) -> tuple[contract.Scoring, str]:
        """Any images, with labels or not: classes do not matter to attention."""
        path = Path(source)
        is_pattern = glob.has_magic(source) and not path.exists()
        if path.is_dir() or is_image_name(path.name) or is_pattern:
            images: Any = list_files([source])
            names, what = [str(file) for file in images], f"images of {source}"
        else:
            split = self.open(self.data_settings(source)).validation
            images, names, what = split.images, list(split.names), f"validation images of {source}"
        preprocessing = Preprocessing.from_tree(loaded.preprocessing)
        unlabelled = ImageSplit(images, np.zeros(len(names), dtype=np.int64), names)
        objective = ClassificationObjective(len(loaded.class_names), preprocessing)
        return contract.Scoring(
            objective, ImageSource(unlabelled, preprocessing), {}, self.evaluation_batch
        ), what

    def image_encoder(self, loaded: LoadedModel) -> nn.Module:
        return loaded.model

    def comparison_metric(self, source: str) -> contract.ComparisonMetric:
        from vitrail.tasks.classification.comparing import comparison_metric

        return comparison_metric(source)


TASK = ClassificationTask()


def _prepare_preprocessing(
    data: ImageDataSettings, dataset: ImageDataset, pretrained: LoadedModel | None
) -> Preprocessing:
    """Return the preprocessing of the pretrained weights, if any, else that of the data."""
    if pretrained is None:
        preprocessing = Preprocessing(image_size=data.image_size, resize=data.resize)
        return preprocessing.with_statistics(sample_images(dataset.train.images, preprocessing))
    return Preprocessing.from_tree(pretrained.preprocessing).with_changes(
        {"image_size": data.image_size, "resize": data.resize, "crop_fraction": 1.0}
    )


def _match_classes(dataset: ImageDataset, split: ImageSplit, class_names: list[str]) -> ImageSplit:
    benchmark = benchmark_of(dataset.source)
    num_classes = {len(dataset.class_names), len(class_names), benchmark.num_classes if benchmark else 0}
    if num_classes == {IMAGENET_CLASSES} and not set(dataset.class_names) <= set(class_names):
        return split  # the order of ImageNet's classes is universal, whatever their names
    return ImageSplit(split.images, contract.match_classes(dataset, class_names)[split.labels], split.names)
