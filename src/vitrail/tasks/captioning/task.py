"""The image captioning task."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from vitrail.core.config import Config
from vitrail.data.feature_cache import FeatureCache
from vitrail.data.preprocessing import Preprocessing, sample_images
from vitrail.data.text.subwords import (
    SentencePieceSubwords,
    Subwords,
    vocabulary_from_files,
    vocabulary_to_files,
)
from vitrail.data.text.words import WordVocabulary
from vitrail.data.text_preprocessing import CaptionPreprocessing
from vitrail.engines.loading import Start, load_start_or_encoder
from vitrail.models.checkpoint import LoadedModel
from vitrail.models.contract import CaptionModelConfig, ModelConfig
from vitrail.report.sections import RunRecord
from vitrail.tasks import contract
from vitrail.tasks.captioning.choose import choose
from vitrail.tasks.captioning.dataset import CaptionDataset, CaptionSplit
from vitrail.tasks.captioning.doctor import check_captions, view_captions
from vitrail.tasks.captioning.explanation import explain_caption_files, explain_examples
from vitrail.tasks.captioning.objective import CaptionObjective
from vitrail.tasks.captioning.opening import open_captions, recognises
from vitrail.tasks.captioning.predictor import Captioner, caption_files
from vitrail.tasks.captioning.report import conclude_captions, write_caption_report
from vitrail.tasks.captioning.samples import CaptionSource, keep_features
from vitrail.tasks.captioning.scores import BLEU4, CaptionTables
from vitrail.tasks.captioning.self_critical import SelfCriticalObjective
from vitrail.tasks.captioning.settings import CaptionDataSettings, CaptionExperiment, CaptionSettings
from vitrail.tasks.explaining import ExplainOptions, WrittenExplanations
from vitrail.train.settings import Experiment


class CaptioningTask(contract.Task):
    """The task ``captioning``; see ``vitrail.tasks.contract.Task``."""

    name = "captioning"
    experiment: type[Experiment] = CaptionExperiment
    models: type[ModelConfig] = CaptionModelConfig
    headline = "bleu4"
    contents = "images with captions"
    usage = "vitrail predict, in Python vitrail.Captioner"
    predictor = Captioner
    explain_options = frozenset({"target", "layer", "head"})
    has_several_texts = True
    predict_options = frozenset({"top", "trust"})
    evaluation_batch = 32
    recognises = staticmethod(recognises)
    check = staticmethod(check_captions)
    choose = staticmethod(choose)
    view = staticmethod(view_captions)
    predict_files = staticmethod(caption_files)
    conclude = staticmethod(conclude_captions)
    max_epochs = 100
    pretrained = "timm:vit_small_patch16_224.augreg_in21k_ft_in1k"
    evaluation_share = 1.5  # of a train step, for captioning the same number of images

    def data_settings(self, source: str, loaded: LoadedModel | None = None) -> CaptionDataSettings:
        """The image size is not used for opening: a model reads images of any size."""
        return CaptionDataSettings(source=source, image_size=(224, 224))

    def open(self, data: CaptionDataSettings) -> CaptionDataset:
        return open_captions(data.source, settings=data)

    def settle(self, experiment: CaptionExperiment, dataset: CaptionDataset) -> contract.Settled:
        """Learn the vocabulary, or take that of the weights, and set the model's vocabulary size."""
        start = load_start_or_encoder(experiment.weights, experiment.model.encoder, task=self.name)
        if start.whole is not None:
            files = dict(start.whole.files)
            vocabulary = vocabulary_from_files(files)
        else:
            vocabulary = _learn_vocabulary(experiment.data, dataset)
            files = vocabulary_to_files(vocabulary)
        fitting: dict[str, Any] = {"model.vocabulary_size": vocabulary.size}
        if start.whole is None:
            fitting["model.image_size"] = experiment.data.image_size
        return contract.Settled(experiment.with_changes(fitting), files)

    def assemble(
        self, experiment: CaptionExperiment, dataset: CaptionDataset, files: Mapping[str, bytes]
    ) -> contract.Parts:
        data, train, settings = experiment.data, experiment.train, experiment.task
        start = load_start_or_encoder(experiment.weights, experiment.model.encoder, task=self.name)
        vocabulary = vocabulary_from_files(files)
        preprocessing = _prepare_preprocessing(data, dataset, start)
        model = contract.build_model(experiment, start.whole)
        if start.encoder is not None:
            model.encoder.take_weights(start.encoder.model)
        is_kept = model.config.encoder_frozen and experiment.keep_features
        augment = None if is_kept else experiment.augment

        def source_of(split: CaptionSplit, *, is_trained: bool) -> CaptionSource:
            features: FeatureCache | None = None
            if is_kept and len(split):
                features = keep_features(split, preprocessing, model, train.precision)
            return CaptionSource(
                split,
                vocabulary,
                preprocessing,
                augment if is_trained else None,
                captions_per_image=data.captions_per_image if is_trained else 0,
                max_length=data.max_length if is_trained else None,
                cache=train.cache,
                features=features,
            )

        if settings.cider_reward or settings.bleu_reward:
            objective: CaptionObjective = SelfCriticalObjective(
                vocabulary, preprocessing, settings, augment=augment, references=dataset.train.captions
            )
        else:
            objective = CaptionObjective(vocabulary, preprocessing, settings, augment=augment)
        return contract.Parts(
            dataset=dataset,
            objective=objective,
            final_objective=CaptionObjective(
                vocabulary, preprocessing, settings, beam_size=settings.beam_size
            ),
            model=model,
            train=source_of(dataset.train, is_trained=True),
            validation=source_of(dataset.validation, is_trained=False),
            test=CaptionSource(dataset.test, vocabulary, preprocessing),
            preprocessing=preprocessing,
            files=files,
        )

    def sign(self, dataset: CaptionDataset, split: str, preprocessing: Config) -> dict[str, str]:
        assert isinstance(preprocessing, CaptionPreprocessing)
        chosen = dataset.splits[split]
        references = {"references": f"{chosen.num_captions / max(len(chosen), 1):.1f} an image"}
        return dataset.sign(split) | references | contract.sign_images(preprocessing.images)

    def score(self, loaded: LoadedModel, dataset: CaptionDataset, split: str) -> contract.Scoring:
        """Decode as the run was scored."""
        preprocessing = CaptionPreprocessing.from_tree(loaded.preprocessing)
        vocabulary = vocabulary_from_files(loaded.files)
        settings = CaptionSettings.from_tree(loaded.about.get("task", {}))
        return contract.Scoring(
            CaptionObjective(vocabulary, preprocessing, settings, beam_size=settings.beam_size),
            CaptionSource(dataset.splits[split], vocabulary, preprocessing),
            self.sign(dataset, split, preprocessing),
            self.evaluation_batch,
        )

    def write_page(self, path: Path, loaded: LoadedModel, parts: contract.Parts, record: RunRecord) -> None:
        tables = CaptionTables.from_tree(record.report.tables)
        split = parts.dataset.test
        write_caption_report(path, record, split, explain_examples(Captioner(loaded), split, tables))

    def explain(
        self, loaded: LoadedModel, inputs: Sequence[str], options: ExplainOptions
    ) -> WrittenExplanations:
        return explain_caption_files(Captioner(loaded), inputs, options)

    def comparison_metric(self, source: str) -> contract.ComparisonMetric:
        return BLEU4


TASK = CaptioningTask()


def _learn_vocabulary(data: CaptionDataSettings, dataset: CaptionDataset) -> Subwords:
    prepare = CaptionPreprocessing(
        images=Preprocessing(image_size=data.image_size), plain_words=data.plain_words
    ).prepare
    texts = prepare([text for captions in dataset.train.captions for text in captions])
    if data.tokens == "words":
        return WordVocabulary.train(texts, size=data.vocabulary_size, min_count=data.min_count)
    return SentencePieceSubwords.train(texts, size=data.vocabulary_size, kind=data.tokens)


def _prepare_preprocessing(
    data: CaptionDataSettings, dataset: CaptionDataset, start: Start
) -> CaptionPreprocessing:
    """Return the preprocessing of the initial weights, if any, else that of the data."""
    size = {"image_size": data.image_size, "resize": data.resize}
    if start.whole is not None:
        known = CaptionPreprocessing.from_tree(start.whole.preprocessing)
        return known.model_copy(update={"images": known.images.with_changes(size)})
    if start.encoder is not None:
        images = Preprocessing.from_tree(start.encoder.preprocessing)
        images = images.with_changes({**size, "crop_fraction": 1.0})
    else:
        images = Preprocessing(image_size=data.image_size, resize=data.resize)
        images = images.with_statistics(sample_images(dataset.train.images, images))
    return CaptionPreprocessing(images=images, plain_words=data.plain_words)
