"""Images with boxes, and the detection of objects."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from vitrail.core.config import Config
from vitrail.data.box_preprocessing import BoxPreprocessing
from vitrail.data.preprocessing import Preprocessing
from vitrail.engines.loading import Start, load_start_or_encoder
from vitrail.models.checkpoint import CLASS_IDS_FILE, LoadedModel
from vitrail.models.contract import DetectionModelConfig, ModelConfig
from vitrail.report.sections import RunRecord
from vitrail.tasks import contract
from vitrail.tasks.detection.choose import choose
from vitrail.tasks.detection.dataset import BoxDataset
from vitrail.tasks.detection.detections import ConfidenceThreshold, own_threshold
from vitrail.tasks.detection.doctor import check_boxes
from vitrail.tasks.detection.doctor_page import view_boxes
from vitrail.tasks.detection.files import show_detections
from vitrail.tasks.detection.fix import refuse_folder, write_clean
from vitrail.tasks.detection.objective import DetectionObjective
from vitrail.tasks.detection.opening import open_boxes, recognises
from vitrail.tasks.detection.predictor import Detector
from vitrail.tasks.detection.report import (
    best_images,
    compare_boxes,
    conclude_boxes,
    typical_images,
    write_detection_report,
)
from vitrail.tasks.detection.samples import BoxSource
from vitrail.tasks.detection.scores import DetectionTables, import_coco_eval
from vitrail.tasks.detection.set_prediction import SetFigures
from vitrail.tasks.detection.settings import BoxDataSettings, DetectionExperiment
from vitrail.tasks.explaining import ExplainOptions, WrittenExplanations, explain_files
from vitrail.train.evaluate import Report
from vitrail.train.settings import Experiment

WORST, EXAMPLES = 12, 6  # images with the most errors, typical and best ones, of a report


class DetectionTask(contract.Task):
    """The task ``detection``, as ``vitrail.tasks.contract.Task`` describes it."""

    name = "detection"
    experiment: type[Experiment] = DetectionExperiment
    models: type[ModelConfig] = DetectionModelConfig
    headline = "ap50"
    contents = "images with boxes"
    usage = "vitrail predict, in Python vitrail.Detector"
    predictor = Detector
    export_formats = frozenset({"onnx", "openvino", "torch"})
    explain_options = frozenset({"threshold", "layer", "head"})
    predict_options = frozenset({"threshold", "engine", "precision", "trust"})
    evaluation_batch = 16
    recognises = staticmethod(recognises)
    check = staticmethod(check_boxes)
    choose = staticmethod(choose)
    view = staticmethod(view_boxes)
    refuse_folder = staticmethod(refuse_folder)
    write_clean = staticmethod(write_clean)
    predict_files = staticmethod(show_detections)
    conclude = staticmethod(conclude_boxes)
    max_epochs = 2000  # few images, of which each is seen otherwise every time
    pretrained = "hf:facebook/detr-resnet-50"
    evaluation_share = 0.4  # of a train step that an evaluation of as many images takes

    def data_settings(self, source: str, loaded: LoadedModel | None = None) -> BoxDataSettings:
        """Return settings with a size that opening does not use: a model reads images of any size."""
        return BoxDataSettings(source=source, image_size=(320, 320))

    def open(self, data: BoxDataSettings) -> BoxDataset:
        return open_boxes(data.source, settings=data)

    def settle(self, experiment: DetectionExperiment, dataset: BoxDataset) -> contract.Settled:
        """Build the model for the size of its images, and record the class ids of the data."""
        import_coco_eval()  # without it, validations would fail later
        if experiment.weights is None:
            experiment = experiment.with_changes({"model.image_size": experiment.data.image_size})
        return contract.Settled(experiment, {CLASS_IDS_FILE: json.dumps(dataset.class_ids).encode()})

    def assemble(
        self, experiment: DetectionExperiment, dataset: BoxDataset, files: Mapping[str, bytes]
    ) -> contract.Parts:
        data, train = experiment.data, experiment.train
        contract.check_num_classes(experiment, dataset)
        config: Any = experiment.model
        start = load_start_or_encoder(experiment.weights, config.backbone or config.name, task=self.name)
        preprocessing = _prepare_preprocessing(data, dataset, start)
        model = contract.build_model(experiment, start.whole)
        if start.encoder is not None:
            model.backbone.take_weights(start.encoder.model)
        objective = DetectionObjective(
            len(dataset.class_names), preprocessing, experiment.task, scoring=config.scoring
        )
        return contract.Parts(
            dataset=dataset,
            objective=objective,
            final_objective=objective,
            model=model,
            train=BoxSource(dataset.train, preprocessing, experiment.augment, cache=train.cache),
            validation=BoxSource(dataset.validation, preprocessing, cache=train.cache),
            test=BoxSource(dataset.test, preprocessing),
            preprocessing=preprocessing,
            class_names=dataset.class_names,
            files=files,
        )

    def sign(self, dataset: BoxDataset, split: str, preprocessing: Config) -> dict[str, str]:
        assert isinstance(preprocessing, BoxPreprocessing)
        return dataset.sign(split) | contract.sign_images(preprocessing)

    def score(self, loaded: LoadedModel, dataset: BoxDataset, split: str) -> contract.Scoring:
        """Match the classes by name."""
        preprocessing = BoxPreprocessing.from_tree(loaded.preprocessing)
        given, label_of = dataset.splits[split], contract.match_classes(dataset, loaded.class_names)
        labels = [label_of[numbers] for numbers in given.labels]
        source = BoxSource(replace(given, labels=labels), preprocessing)
        signature = self.sign(dataset, split, preprocessing)
        return contract.Scoring(self.export_objective(loaded), source, signature, self.evaluation_batch)

    def export_objective(self, loaded: LoadedModel) -> DetectionObjective:
        config: Any = loaded.model.config
        return DetectionObjective(
            len(loaded.class_names),
            BoxPreprocessing.from_tree(loaded.preprocessing),
            scoring=config.scoring,
            threshold=ConfidenceThreshold(own_threshold(loaded.about), "the model's own"),
        )

    def write_page(self, path: Path, loaded: LoadedModel, parts: contract.Parts, record: RunRecord) -> None:
        tables, detector = DetectionTables.from_tree(record.report.tables), Detector(loaded)
        chosen = {
            "worst": [outcome.index for outcome in tables.worst[:WORST]],
            "typical": typical_images(tables, EXAMPLES),
            "best": best_images(tables, EXAMPLES),
        }
        test = parts.dataset.test
        compared = {kind: compare_boxes(detector, test, tables, indices) for kind, indices in chosen.items()}
        figures = SetFigures(detector, parts.final_objective, parts.test, tables)
        write_detection_report(path, record, compared, figures.sections())

    def draw_scored(self, path: Path, loaded: LoadedModel, scoring: contract.Scoring, report: Report) -> None:
        tables = DetectionTables.from_tree(report.tables)
        SetFigures(Detector(loaded), scoring.objective, scoring.source, tables).write(path)

    def explain(
        self, loaded: LoadedModel, inputs: Sequence[str], options: ExplainOptions
    ) -> WrittenExplanations:
        detector = Detector(loaded)
        threshold = detector.threshold_of(options.threshold)
        return explain_files(lambda path: detector.explain(path, threshold=threshold), inputs, options)

    def comparison_metric(self, source: str) -> contract.ComparisonMetric:
        from vitrail.tasks.detection.comparing import AVERAGE_PRECISION

        return AVERAGE_PRECISION


TASK = DetectionTask()


def _prepare_preprocessing(data: BoxDataSettings, dataset: BoxDataset, start: Start) -> BoxPreprocessing:
    """Return the preprocessing of the pretrained weights, else that of the data."""
    size = {"image_size": data.image_size, "resize": data.resize}
    if start.whole is not None:
        return BoxPreprocessing.from_tree(start.whole.preprocessing).with_changes(size)
    if start.encoder is not None:
        known = Preprocessing.from_tree(start.encoder.preprocessing)
        pixels = {"mean": known.mean, "std": known.std, "interpolation": known.interpolation}
        return BoxPreprocessing.from_tree({**size, **pixels})
    return BoxPreprocessing.from_tree(size).with_statistics(dataset.train.images)
