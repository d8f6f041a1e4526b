"""The labelling task: a label for each text, or for each of its words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import MappingProxyType

from vitrail.core.config import Config
from vitrail.core.errors import DataError
from vitrail.data.text.subwords import SentencePieceSubwords, vocabulary_from_files, vocabulary_to_files
from vitrail.data.text_preprocessing import TextPreprocessing
from vitrail.engines.loading import load_start
from vitrail.models.checkpoint import LoadedModel
from vitrail.models.contract import LabellingModelConfig, ModelConfig
from vitrail.report.sections import RunRecord
from vitrail.tasks import contract
from vitrail.tasks.classification.comparing import Accuracy
from vitrail.tasks.classification.report import conclude_classes
from vitrail.tasks.explaining import ExplainOptions, WrittenExplanations, explain_texts
from vitrail.tasks.labelling.choose import choose
from vitrail.tasks.labelling.dataset import TextDataset, TextSplit
from vitrail.tasks.labelling.doctor import check_texts, view_texts
from vitrail.tasks.labelling.explanation import explain_text
from vitrail.tasks.labelling.objective import LabellingObjective
from vitrail.tasks.labelling.opening import open_texts, recognises
from vitrail.tasks.labelling.predictor import Labeller
from vitrail.tasks.labelling.report import write_labelling_report
from vitrail.tasks.labelling.samples import TextSource
from vitrail.tasks.labelling.settings import LabellingExperiment, TextDataSettings
from vitrail.train.evaluate import Report
from vitrail.train.settings import Experiment

NUM_EXPLAINED, MAX_EXPLAINED_WORDS = 4, 40  # in a report
THINGS = {"sentence": "text", "words": "word"}  # what has a label


class TextAccuracy(Accuracy):
    """Accuracy over texts or words, and McNemar's test of those on which two models disagree."""

    shared_settings = MappingProxyType({"model.positions": "sinusoidal"})  # rotary ones need attention


class LabellingTask(contract.Task):
    """The task ``labelling``; see ``vitrail.tasks.contract.Task``."""

    name = "labelling"
    experiment: type[Experiment] = LabellingExperiment
    models: type[ModelConfig] = LabellingModelConfig
    headline = "accuracy"
    contents = "texts with labels"
    usage = "vitrail label, in Python vitrail.Labeller"
    predictor = Labeller
    samples = "texts"
    explain_options = frozenset({"layer", "head"})
    explains_texts = True
    unit = "tokens"
    evaluation_batch = 8192  # tokens
    recognises = staticmethod(recognises)
    check = staticmethod(check_texts)
    choose = staticmethod(choose)
    view = staticmethod(view_texts)
    max_epochs = 40
    pretrained = "hf:google-bert/bert-base-uncased"
    evaluation_share = 0.35  # of a train step, for a forward pass of the same batch

    def data_settings(self, source: str, loaded: LoadedModel | None = None) -> TextDataSettings:
        return TextDataSettings(source=source)

    def open(self, data: TextDataSettings) -> TextDataset:
        return open_texts(data.source, settings=data)

    def settle(self, experiment: LabellingExperiment, dataset: TextDataset) -> contract.Settled:
        """Learn the subwords, or take those of the weights, and set what depends on them."""
        data = experiment.data
        pretrained = load_start(experiment.weights, experiment.model.name, task=self.name)
        if pretrained is not None:
            most = min(data.max_length, experiment.model.max_length)
            return contract.Settled(
                experiment.with_changes({"data.max_length": most}), dict(pretrained.files)
            )
        texts = [dataset.train.text(index) for index in range(len(dataset.train))]
        prepared = TextPreprocessing(lower_case=data.lower_case).prepare(texts)
        vocabulary = SentencePieceSubwords.train(prepared, size=data.vocabulary_size, kind=data.subwords)
        changes = {"model.vocabulary_size": vocabulary.size, "model.max_length": data.max_length}
        return contract.Settled(experiment.with_changes(changes), vocabulary_to_files(vocabulary))

    def assemble(
        self, experiment: LabellingExperiment, dataset: TextDataset, files: Mapping[str, bytes]
    ) -> contract.Parts:
        data = experiment.data
        contract.check_num_classes(experiment, dataset)
        _check_labels(dataset, experiment.model.labels)
        pretrained = load_start(experiment.weights, experiment.model.name, task=self.name)
        # published weights have their own rule of lower case
        own = {"lower_case": data.lower_case} if pretrained is None else pretrained.preprocessing
        preprocessing = TextPreprocessing.from_tree(own).with_changes(
            {"labels": experiment.model.labels, "max_length": data.max_length}
        )
        vocabulary = vocabulary_from_files(files)
        objective = LabellingObjective(
            dataset.class_names, vocabulary, preprocessing, label_smoothing=experiment.task.label_smoothing
        )
        sources = {
            name: TextSource(split, vocabulary, preprocessing) for name, split in dataset.splits.items()
        }
        return contract.Parts(
            dataset=dataset,
            objective=objective,
            final_objective=objective,
            model=contract.build_model(experiment, pretrained),
            train=sources["train"],
            validation=sources["validation"],
            test=sources["test"],
            preprocessing=preprocessing,
            class_names=dataset.class_names,
            files=files,
        )

    def sign(self, dataset: TextDataset, split: str, preprocessing: Config) -> dict[str, str]:
        assert isinstance(preprocessing, TextPreprocessing)
        case = ", lower case" * preprocessing.lower_case
        read = f"{dataset.labels}{case}, first {preprocessing.max_length} subwords"
        return {**dataset.sign(split), "input": read}

    def score(self, loaded: LoadedModel, dataset: TextDataset, split: str) -> contract.Scoring:
        """Match the classes by name."""
        preprocessing = TextPreprocessing.from_tree(loaded.preprocessing)
        _check_labels(dataset, preprocessing.labels)
        vocabulary = vocabulary_from_files(loaded.files)
        numbers, part = contract.match_classes(dataset, loaded.class_names), dataset.splits[split]
        matched = TextSplit(part.parts, tuple(numbers[labels] for labels in part.labels), part.names)
        return contract.Scoring(
            LabellingObjective(loaded.class_names, vocabulary, preprocessing),
            TextSource(matched, vocabulary, preprocessing),
            self.sign(dataset, split, preprocessing),
            self.evaluation_batch,
        )

    def conclude(self, report: Report) -> contract.Diagnosis:
        labels = report.signature["input"].partition(",")[0]
        return conclude_classes(report, things=f"{THINGS[labels]}s")

    def write_page(self, path: Path, loaded: LoadedModel, parts: contract.Parts, record: RunRecord) -> None:
        test, labeller = parts.dataset.test, Labeller(loaded)
        texts = [
            text for text in map(test.text, range(len(test))) if len(text.split()) <= MAX_EXPLAINED_WORDS
        ]
        explained = []
        for text in texts[:NUM_EXPLAINED]:
            with suppress(DataError):  # words that the model's rule cuts differently, and then too many
                explained.append(explain_text(labeller, text))
        things = f"{THINGS[labeller.preprocessing.labels]}s"
        write_labelling_report(path, record, test, explained, things=things)

    def explain(
        self, loaded: LoadedModel, inputs: Sequence[str], options: ExplainOptions
    ) -> WrittenExplanations:
        labeller = Labeller(loaded)
        return explain_texts(lambda text: explain_text(labeller, text), inputs, options)

    def comparison_metric(self, source: str) -> contract.ComparisonMetric | None:
        return TextAccuracy()


TASK = LabellingTask()


def _check_labels(dataset: TextDataset, labels: str) -> None:
    """Refuse labels of sentences for a model of words, and the reverse."""
    if dataset.labels != labels:
        raise DataError(
            f"{dataset.source} has a label for each {THINGS[dataset.labels]}",
            expected=f"a label for each {THINGS[labels]}, as the model gives",
            remedy="Name other data, or train a model on this",
        )
