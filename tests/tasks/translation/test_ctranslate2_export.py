"""Exported folders translate and score as we do, and folders that would not are not written."""

from __future__ import annotations

import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import sentencepiece
import torch

from making.marian_folder import SOURCE_SYLLABLES, TARGET_SYLLABLES, made_up_sentences, write_marian_folder
from making.random_weights import randomise
from vitrail import __version__
from vitrail.core.errors import CheckpointError, ConfigError
from vitrail.data.text.subwords import PairVocabulary
from vitrail.data.text_preprocessing import PairPreprocessing
from vitrail.models import model_settings
from vitrail.models.checkpoint import LoadedModel
from vitrail.models.transformer import TransformerConfig
from vitrail.models.weights.published import load_published
from vitrail.tasks.translation import ctranslate2_export
from vitrail.tasks.translation.ctranslate2_export import TOLERANCES, export_ctranslate2
from vitrail.tasks.translation.predictor import Translator

ctranslate2 = pytest.importorskip("ctranslate2")

SOURCES = made_up_sentences(200, seed=1, syllables=SOURCE_SYLLABLES)
TARGETS = made_up_sentences(200, seed=2, syllables=TARGET_SYLLABLES)
SMALL = {"width": 24, "hidden_dim": 40, "num_heads": 4, "encoder_depth": 2, "decoder_depth": 3}


@cache
def make_vocabulary(is_joint: bool) -> PairVocabulary:
    return PairVocabulary.train(SOURCES, TARGETS, size=90, is_joint=is_joint)


def make_translator(**changes: Any) -> LoadedModel:
    """Return a random model with a trained vocabulary, joint unless nothing or the output alone is tied."""
    vocabulary = make_vocabulary(changes.get("tie", "all") == "all")
    sizes = {
        "source_vocabulary_size": vocabulary.source.size,
        "target_vocabulary_size": vocabulary.target.size,
    }
    settings = model_settings("transformer_base", **SMALL, **sizes, **changes)
    config = TransformerConfig.from_tree({key: value for key, value in settings.items() if key != "name"})
    torch.manual_seed(5)
    model = randomise(config.build())
    with torch.no_grad():  # random signs, or the likeliest token would be the one before it
        (model.decoder_norm if config.norm == "pre" else model.decoder[-1].mlp_norm).weight.normal_(std=1.5)
    preprocessing = PairPreprocessing(languages=("en", "de"))
    about = {"vitrail": __version__}
    return LoadedModel(
        model, settings, preprocessing.model_dump(mode="json"), [], about, vocabulary.to_files()
    )


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"norm": "pre", "positions": "sinusoidal_halves", "activation": "gelu", "output_bias": True},
        {"norm": "pre", "positions": "rotary"},
        {"tie": "output", "positions": "learned", "max_length": 50, "activation": "silu"},
        {"tie": "none", "norm": "pre", "positions": "none", "output_bias": True, "scale_embedding": False},
        {"tie": "none", "dropout": 0.0},
    ],
    ids=lambda changes: "-".join(str(value) for value in changes.values()) or "default",
)
def test_what_is_exported_translates_and_scores_alike(changes, tmp_path):
    proof = export_ctranslate2(make_translator(**changes), tmp_path / "out", sentences=SOURCES[:20])

    assert proof.num_sentences == 20
    assert proof.num_tokens > 100
    assert proof.largest_difference < TOLERANCES["float32"]  # measured: 4e-6
    assert proof.largest_score_difference < TOLERANCES["float32"]
    assert proof.num_parted == {"greedy": 0, "beam": 0}
    assert min(proof.num_same.values()) >= 10
    assert len(list(proof.to_lines())) == 3


def test_a_user_needs_the_folder_alone(tmp_path):
    loaded = make_translator()
    export_ctranslate2(loaded, tmp_path / "out")
    subwords = sentencepiece.SentencePieceProcessor(model_file=str(tmp_path / "out" / "subwords.model"))
    engine = ctranslate2.Translator(str(tmp_path / "out"))
    found = engine.translate_batch(
        [subwords.encode(text, out_type=str) for text in SOURCES[:8]],
        beam_size=5,
        min_decoding_length=0,
        max_decoding_length=30,
    )
    ours = Translator(loaded).translate(SOURCES[:8], max_length=30)

    written = [subwords.decode(each.hypotheses[0]) for each in found]
    expected = list(ours)
    # Those that are cut off at the longest length are chosen by other rules.
    assert [text for text, our in zip(written, expected, strict=True) if not our.warnings] == [
        our.text for our in expected if not our.warnings
    ]
    readme = (tmp_path / "out" / "README.md").read_text()
    assert "subwords.model" in readme
    assert "en to de" in readme


def test_published_models_are_exported_with_their_vocabulary(tmp_path):
    write_marian_folder(tmp_path / "marian", share_encoder_decoder_embeddings=False)
    proof = export_ctranslate2(load_published(f"hf:{tmp_path / 'marian'}"), tmp_path / "out")

    assert proof.num_parted == {"greedy": 0, "beam": 0}
    assert min(proof.num_same.values()) > 5
    assert (tmp_path / "out" / "source.spm").is_file()
    assert "target.spm" in (tmp_path / "out" / "README.md").read_text()


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """Return a translator, its weights, its export in float32, and the proof, with random sentences."""
    loaded = make_translator()
    before = {name: tensor.clone() for name, tensor in loaded.model.state_dict().items()}
    folder = tmp_path_factory.mktemp("exports") / "whole"
    proof = export_ctranslate2(loaded, folder, sentences=["", " "])
    assert proof.num_sentences == ctranslate2_export.NUM_DRAWN
    return loaded, before, folder, proof


SATURATES = pytest.mark.skipif(
    not torch.cpu._is_vnni_supported(), reason="without VNNI CTranslate2's int8 sums overflow 16 bits"
)


@pytest.mark.parametrize(
    "quantization",
    [
        pytest.param("int8", marks=SATURATES),
        "bfloat16",
        "float16",
        pytest.param("int16", marks=SATURATES),  # which runs as int8 where the CPU has nothing better
    ],
)
def test_rounded_weights_are_held_to_their_own_tolerance(quantization, whole, tmp_path):
    loaded, before, folder, exact = whole
    proof = export_ctranslate2(loaded, tmp_path / "out", quantization=quantization)

    assert all(torch.equal(tensor, before[name]) for name, tensor in loaded.model.state_dict().items())
    assert exact.mean_difference < proof.mean_difference <= TOLERANCES[quantization]
    sizes = [(each / "model.bin").stat().st_size for each in (tmp_path / "out", folder)]
    assert sizes[0] < 0.9 * sizes[1]  # of which positions, never rounded, are the most here


def test_an_export_that_differs_is_not_kept(monkeypatch, tmp_path):
    build_spec = ctranslate2_export.build_spec

    def build_wrongly(*arguments: Any) -> Any:
        spec = build_spec(*arguments)
        spec.decoder.layer[1].ffn.linear_1.bias[3] += 0.05
        return spec

    loaded = make_translator()
    export_ctranslate2(loaded, tmp_path / "out")
    before = (tmp_path / "out" / "model.bin").read_bytes()
    monkeypatch.setattr(ctranslate2_export, "build_spec", build_wrongly)
    with pytest.raises(CheckpointError, match="does not compute what ours does: log-probabilities differ by"):
        export_ctranslate2(loaded, tmp_path / "out")
    assert (tmp_path / "out" / "model.bin").read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"positions": "relative"}, "positions 'relative'"),
        ({"mixer": "fourier", "positions": "none"}, "mixer 'fourier'"),
        ({"decoder_mixer": "light_convolution"}, "decoder_mixer 'light_convolution'"),
        ({"norm_layer": "batch", "head_dim": 5}, "head_dim 5 and norm_layer 'batch'"),
        ({"positions": "sinusoidal+rotary"}, r"positions 'sinusoidal\+rotary'"),
    ],
)
def test_what_the_engine_cannot_run_is_refused(changes, fault, tmp_path):
    with pytest.raises(ConfigError, match=fault):
        export_ctranslate2(make_translator(**changes), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_other_models_and_quantizations_are_refused(tmp_path):
    loaded = make_translator()
    with pytest.raises(ConfigError, match="cannot run a model of the family 'Linear'"):
        export_ctranslate2(loaded._replace(model=torch.nn.Linear(2, 3)), tmp_path / "out")
    with pytest.raises(ConfigError, match="no quantization 'int4'"):
        export_ctranslate2(loaded, tmp_path / "out", quantization="int4")


def test_other_folders_are_not_replaced(tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "thesis.txt").write_text("precious")
    with pytest.raises(CheckpointError, match="is not a model of CTranslate2"):
        export_ctranslate2(make_translator(), tmp_path / "out")
    assert (tmp_path / "out" / "thesis.txt").read_text() == "precious"


def test_a_missing_engine_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setitem(sys.modules, "ctranslate2", None)
    with pytest.raises(ConfigError, match=r"pip install 'vitrail\[ctranslate2\]'"):
        export_ctranslate2(make_translator(), tmp_path / "out")
