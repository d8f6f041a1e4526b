"""The translation task."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from vitrail.core.config import Config
from vitrail.core.errors import ConfigError
from vitrail.data.text.subwords import PairVocabulary
from vitrail.data.text_preprocessing import PairPreprocessing
from vitrail.engines.loading import load_start
from vitrail.models.checkpoint import LoadedModel
from vitrail.models.contract import ModelConfig, TranslationModelConfig
from vitrail.report.sections import RunRecord
from vitrail.tasks import contract
from vitrail.tasks.explaining import ExplainOptions, WrittenExplanations, explain_texts
from vitrail.tasks.translation.choose import choose
from vitrail.tasks.translation.dataset import PairDataset
from vitrail.tasks.translation.doctor import check_pairs, view_pairs
from vitrail.tasks.translation.explanation import explain_examples, explain_text
from vitrail.tasks.translation.objective import TranslationObjective
from vitrail.tasks.translation.opening import open_pairs, recognises
from vitrail.tasks.translation.predictor import Translator
from vitrail.tasks.translation.report import conclude_translations, write_translation_report
from vitrail.tasks.translation.samples import PairSource
from vitrail.tasks.translation.scores import BLEU, TranslationTables
from vitrail.tasks.translation.settings import PairDataSettings, TranslationExperiment, TranslationSettings
from vitrail.train.settings import Experiment


class TranslationTask(contract.Task):
    """The task ``translation``; see ``vitrail.tasks.contract.Task``."""

    name = "translation"
    experiment: type[Experiment] = TranslationExperiment
    models: type[ModelConfig] = TranslationModelConfig
    headline = "bleu"
    contents = "pairs of sentences"
    usage = "vitrail translate, in Python vitrail.Translator"
    predictor = Translator
    samples = "sentence pairs"
    export_formats = frozenset({"ctranslate2"})
    explain_options = frozenset({"target", "subwords", "layer", "head"})
    explains_texts = True
    unit = "tokens"
    evaluation_batch = 8192  # tokens
    recognises = staticmethod(recognises)
    check = staticmethod(check_pairs)
    choose = staticmethod(choose)
    view = staticmethod(view_pairs)
    conclude = staticmethod(conclude_translations)
    max_epochs = 200
    evaluation_share = 2.0  # of a train step, for decoding the same number of pairs

    def data_settings(self, source: str, loaded: LoadedModel | None = None) -> PairDataSettings:
        """With the languages of a saved model."""
        languages = None if loaded is None else PairPreprocessing.from_tree(loaded.preprocessing).languages
        return PairDataSettings(source=source, languages=languages)

    def open(self, data: PairDataSettings) -> PairDataset:
        return open_pairs(data.source, settings=data)

    def settle(self, experiment: TranslationExperiment, dataset: PairDataset) -> contract.Settled:
        """Learn the vocabulary, or take that of the weights, and set the model's vocabulary size."""
        pretrained = load_start(experiment.weights, experiment.model.name, task=self.name)
        if pretrained is None:
            data, prepare = experiment.data, _preprocessing(experiment.data, dataset).prepare
            vocabulary = PairVocabulary.train(
                prepare(dataset.train.sources),
                prepare(dataset.train.targets),
                size=data.vocabulary_size,
                kind=data.subwords,
                is_joint=data.joint_vocabulary,
            )
            files = vocabulary.to_files()
        else:
            vocabulary, files = PairVocabulary.from_files(pretrained.files), dict(pretrained.files)
        sizes = {
            "model.source_vocabulary_size": vocabulary.source.size,
            "model.target_vocabulary_size": vocabulary.target.size,
        }
        return contract.Settled(experiment.with_changes(sizes), files)

    def assemble(
        self, experiment: TranslationExperiment, dataset: PairDataset, files: Mapping[str, bytes]
    ) -> contract.Parts:
        data, settings = experiment.data, experiment.task
        pretrained = load_start(experiment.weights, experiment.model.name, task=self.name)
        preprocessing = _preprocessing(data, dataset)
        if pretrained is not None:
            preprocessing = PairPreprocessing.from_tree(pretrained.preprocessing)
        vocabulary = PairVocabulary.from_files(files)
        model = contract.build_model(experiment, pretrained)
        source = PairSource(
            dataset.train,
            vocabulary,
            preprocessing,
            max_length=data.max_length,
            subword_dropout=data.subword_dropout,
        )
        objective = TranslationObjective(vocabulary, preprocessing, label_smoothing=settings.label_smoothing)
        return contract.Parts(
            dataset=dataset,
            objective=objective,
            final_objective=TranslationObjective(vocabulary, preprocessing, search=settings.search),
            model=model,
            train=source,
            validation=PairSource(dataset.validation, vocabulary, preprocessing),
            test=PairSource(dataset.test, vocabulary, preprocessing),
            preprocessing=preprocessing,
            files=files,
        )

    def sign(self, dataset: PairDataset, split: str, preprocessing: Config) -> dict[str, str]:
        assert isinstance(preprocessing, PairPreprocessing)
        text = "tokenised" if preprocessing.tokenised else "raw"
        return dataset.sign(split) | {
            "input": f"{'-'.join(dataset.languages)} {text}{' lower-cased' * preprocessing.lower_case}"
        }

    def score(self, loaded: LoadedModel, dataset: PairDataset, split: str) -> contract.Scoring:
        """Decode as the run was scored, and as the default of translating."""
        preprocessing = PairPreprocessing.from_tree(loaded.preprocessing)
        vocabulary = PairVocabulary.from_files(loaded.files)
        settings = TranslationSettings.from_tree(loaded.about.get("task", {}))
        return contract.Scoring(
            TranslationObjective(vocabulary, preprocessing, search=settings.search),
            PairSource(dataset.splits[split], vocabulary, preprocessing),
            self.sign(dataset, split, preprocessing),
            self.evaluation_batch,
        )

    def write_page(self, path: Path, loaded: LoadedModel, parts: contract.Parts, record: RunRecord) -> None:
        tables = TranslationTables.from_tree(record.report.tables)
        write_translation_report(path, record, explain_examples(Translator(loaded), tables))

    def explain(
        self, loaded: LoadedModel, inputs: Sequence[str], options: ExplainOptions
    ) -> WrittenExplanations:
        if options.target is not None and len(inputs) > 1:
            raise ConfigError(
                f"a translation was given for {len(inputs)} sentences",
                expected="one --text with its --target",
                remedy="Explain them one by one",
            )
        translator = Translator(loaded)
        return explain_texts(
            lambda text: explain_text(translator, text, target=options.target, by_words=not options.subwords),
            inputs,
            options,
        )

    def comparison_metric(self, source: str) -> contract.ComparisonMetric:
        return BLEU


TASK = TranslationTask()


def _preprocessing(data: PairDataSettings, dataset: PairDataset) -> PairPreprocessing:
    return PairPreprocessing(
        languages=dataset.languages, tokenised=data.tokenised, lower_case=data.lower_case
    )
