"""Marian models compute and translate what those of transformers do from the same files."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import safetensors.torch
import torch
from torch import Tensor, nn
from transformers import MarianTokenizer

from making.marian_folder import made_up_sentences, write_marian_folder
from making.references import key_table
from vitrail.core.errors import CheckpointError, ConfigError
from vitrail.data.text.subwords import PairVocabulary
from vitrail.engines.loading import load_any
from vitrail.models import MODELS
from vitrail.models.decoding import beam_search, greedy
from vitrail.models.weights.conversion import convert
from vitrail.models.weights.published import convert_to_folder, load_published
from vitrail.models.weights.table import to_theirs
from vitrail.tasks.translation.predictor import Translator
from vitrail.tasks.translation.search import Search

TOLERANCE = 1e-4  # of logits of a scale of one to three, in float32; measured: 1.5e-5
LONGEST = 40  # tokens of a translation, its end counted
VARIETIES = {
    "shared": {},
    "two vocabularies": {"share_encoder_decoder_embeddings": False, "activation_function": "relu"},
    "own output": {
        "share_encoder_decoder_embeddings": False,
        "tie_word_embeddings": False,
        "activation_function": "gelu",
    },
}


class Example:
    """A folder, the model of transformers in it and ours, and sentences."""

    def __init__(self, folder: Path, **changes: object) -> None:
        self.folder, self.reference = folder, write_marian_folder(folder, **changes)
        self.loaded = load_published(f"hf:{folder}")
        self.model = self.loaded.model
        self.tokeniser = MarianTokenizer.from_pretrained(folder)
        self.sentences = made_up_sentences(64, seed=9)
        self.inputs = self.tokeniser(self.sentences, return_tensors="pt", padding=True)
        self.source, self.lengths = self.inputs["input_ids"], self.inputs["attention_mask"].sum(dim=1)
        self.end, self.pad = self.reference.config.eos_token_id, self.reference.config.pad_token_id

    def generate(self, **settings: object) -> list[list[int]]:
        """Return what transformers writes, without begin and padding, with the end where there is one."""
        rows = self.reference.generate(**self.inputs, max_length=LONGEST + 1, **settings)
        return [[number for number in row if number != self.pad] for row in rows[:, 1:].tolist()]

    def start(self) -> dict[str, object]:
        """Return the arguments of our decoding."""
        return {
            "model": self.model,
            "state": self.model.start(self.source, self.lengths),
            "begin_id": self.model.config.begin_id,
            "end_id": self.model.config.end_id,
            "pad_id": self.model.config.pad_id,
            "max_lengths": torch.full_like(self.lengths, LONGEST),
        }

    def logits(self, target: Tensor) -> tuple[Tensor, Tensor]:
        """Return the logits of the reference and ours."""
        with torch.no_grad():
            expected = self.reference(**self.inputs, decoder_input_ids=target).logits
            return expected, self.model(self.source, self.lengths, target)


@pytest.fixture(scope="module", params=sorted(VARIETIES))
def example(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Example:
    return Example(tmp_path_factory.mktemp("marian") / "model", **VARIETIES[request.param])


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Example:
    return Example(tmp_path_factory.mktemp("marian") / "model")


def test_logits_equal_those_of_transformers(example):
    target = torch.randint(example.model.config.target_vocabulary_size, (64, 11))
    expected, logits = example.logits(target)

    assert 0.3 < expected.std() < 5
    assert (logits - expected).abs().max() <= TOLERANCE


def test_embeddings_may_stay_unscaled(tmp_path):
    unscaled = Example(tmp_path / "model", scale_embedding=False)
    expected, logits = unscaled.logits(torch.randint(100, (64, 7)))

    assert not unscaled.model.config.scale_embedding
    assert (logits - expected).abs().max() <= TOLERANCE


def test_greedy_decoding_writes_what_transformers_writes(example):
    ours = greedy(**example.start())

    assert [[*found.tokens, *[example.end] * found.is_finished] for found in ours] == example.generate(
        num_beams=1
    )
    assert len({found.tokens for found in ours}) >= 10  # or their equality would say little


@pytest.mark.parametrize(
    ("length_penalty", "patience", "early_stopping"),
    [(1.0, math.inf, "never"), (0.6, math.inf, "never"), (1.0, 1, True), (2.0, 1, True)],
)
def test_beam_search_writes_what_transformers_writes(example, length_penalty, patience, early_stopping):
    """Their rule "never" is our exact one, their True our patience of one.

    Sentences are left out where they prefer a hypothesis that the longest length cut off: among ours,
    such a one comes after all that ended.
    """
    ours = beam_search(**example.start(), beam_size=4, length_penalty=length_penalty, patience=patience)
    theirs = example.generate(num_beams=4, length_penalty=length_penalty, early_stopping=early_stopping)
    finished = [
        (best.tokens, row[:-1])
        for (best, *_), row in zip(ours, theirs, strict=True)
        if row[-1:] == [example.end]
    ]

    assert len(finished) >= 8
    assert [tuple(row) for _, row in finished] == [tokens for tokens, _ in finished]
    assert len({tokens for tokens, _ in finished}) >= 4  # or their equality would say little


def test_a_converted_folder_translates_text_as_transformers_does(example, tmp_path):
    lines = list(convert_to_folder(f"hf:{example.folder}", tmp_path / "ours"))
    translator = Translator(tmp_path / "ours")
    found = list(translator.translate(example.sentences, beam_size=4, max_length=LONGEST - 1))
    rows = example.generate(num_beams=4, early_stopping=True)
    expected = example.tokeniser.batch_decode(rows, skip_special_tokens=True)
    is_finished = [row[-1:] == [example.end] for row in rows]

    assert translator.languages == ("en", "de")
    assert "sentences: en to de" in lines
    assert [each.text for each, is_whole in zip(found, is_finished, strict=True) if is_whole] == [
        text for text, is_whole in zip(expected, is_finished, strict=True) if is_whole
    ]


@pytest.mark.parametrize(
    ("asked", "expected"),
    [({}, Search()), ({"num_beams": 6, "length_penalty": 0.8}, Search(6, 0.8))],
)
def test_a_folder_decodes_as_its_configuration_says_and_says_so(tmp_path, asked, expected):
    write_marian_folder(tmp_path / "theirs")
    path = tmp_path / "theirs" / "generation_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **asked}))
    list(convert_to_folder(f"hf:{tmp_path / 'theirs'}", tmp_path / "ours"))

    assert Translator(tmp_path / "ours").search == expected
    task = json.loads((tmp_path / "ours" / "model.json").read_text())["about"]["task"]
    assert task["penalty_form"] == "power"


def test_a_file_with_every_name_gives_the_same_model(shared, tmp_path):
    """Older files hold the tied tensors under each of their names, and the positions."""
    for path in shared.folder.iterdir():
        if path.name != "model.safetensors":
            (tmp_path / path.name).write_bytes(path.read_bytes())
    state = shared.reference.state_dict()
    assert "model.encoder.embed_positions.weight" in state
    torch.save(dict(state), tmp_path / "pytorch_model.bin")

    again = load_published(f"hf:{tmp_path}")
    _check_same(again.model, shared.model)
    assert again.files == shared.loaded.files


def test_the_key_table_reads_both_ways(example):
    table = key_table("hf", example.model.config)
    back = to_theirs(table, example.model.state_dict())
    expected = {
        name: tensor
        for name, tensor in example.reference.state_dict().items()
        if "embed_positions" not in name
    }

    assert back.keys() == expected.keys()
    assert all(torch.equal(back[name], tensor) for name, tensor in expected.items())
    ours = convert(
        example.reference.state_dict(),
        source="hf",
        model="transformer_base",
        **example.model.config.model_dump(),
    )
    assert ours.keys() == example.model.state_dict().keys()


def test_a_saved_folder_needs_nothing_but_itself(shared, tmp_path):
    list(convert_to_folder(f"hf:{shared.folder}", tmp_path / "ours"))
    again = load_any(tmp_path / "ours")

    _check_same(again.model, shared.model)
    assert PairVocabulary.from_files(again.files).source.encode(["bake"]) == [
        shared.tokeniser("bake")["input_ids"][:-1]
    ]


def _check_same(model: nn.Module, expected: nn.Module) -> None:
    state = model.state_dict()
    assert state.keys() == expected.state_dict().keys()
    assert all(torch.equal(state[name], tensor) for name, tensor in expected.state_dict().items())


def _copy(source: Path, target: Path, *, state: dict[str, Tensor] | None = None, **settings: object) -> str:
    """Copy a folder with other weights or settings, and return its name as a source."""
    target.mkdir()
    for path in source.iterdir():
        (target / path.name).write_bytes(path.read_bytes())
    if state is not None:
        safetensors.torch.save_file(state, target / "model.safetensors")
    described = json.loads((source / "config.json").read_text())
    (target / "config.json").write_text(json.dumps(described | settings))
    return f"hf:{target}"


def test_weights_that_do_not_fit_are_refused_with_a_list(shared, tmp_path):
    state = safetensors.torch.load_file(shared.folder / "model.safetensors")
    name = "model.decoder.layers.1.encoder_attn.k_proj.weight"
    less = {key: tensor for key, tensor in state.items() if key != name}
    with pytest.raises(CheckpointError, match=f"1 missing: {name}"):
        load_published(_copy(shared.folder, tmp_path / "less", state=less))
    more = {**state, "model.decoder.layers.9.fc1.bias": torch.zeros(3)}
    with pytest.raises(CheckpointError, match=r"1 unexpected: model\.decoder\.layers\.9\.fc1\.bias"):
        load_published(_copy(shared.folder, tmp_path / "more", state=more))
    wide = {key: tensor.repeat(2) if key.endswith("fc1.bias") else tensor for key, tensor in state.items()}
    with pytest.raises(CheckpointError, match=r"expand\.bias is \(80,\), not \(40,\)"):
        load_published(_copy(shared.folder, tmp_path / "wide", state=wide))


def test_tied_names_must_hold_the_same(shared, tmp_path):
    state = safetensors.torch.load_file(shared.folder / "model.safetensors")
    other = {**state, "lm_head.weight": state["model.shared.weight"] + 1}
    with pytest.raises(CheckpointError, match=r"lm_head\.weight differs from model\.shared\.weight"):
        load_published(_copy(shared.folder, tmp_path / "other", state=other))


def test_learned_positions_are_refused(shared, tmp_path):
    state = safetensors.torch.load_file(shared.folder / "model.safetensors")
    learned = {**state, "model.decoder.embed_positions.weight": torch.randn(64, 24)}
    with pytest.raises(CheckpointError, match="other positions than sines and cosines"):
        load_published(_copy(shared.folder, tmp_path / "learned", state=learned))


@pytest.mark.parametrize(
    ("settings", "fault"),
    [
        ({"normalize_before": True}, "normalize_before is True, not False"),
        ({"decoder_attention_heads": 2}, "encoder and decoder have 4 and 2 as attention_heads"),
        ({"activation_function": "tanh"}, "activation_function is 'tanh'"),
        ({"encoder_attention_heads": 5, "decoder_attention_heads": 5}, "does not divide width"),
        ({"decoder_start_token_id": 1000}, "begin_id 1000 is not an id"),
    ],
)
def test_models_unlike_ours_are_refused(shared, tmp_path, settings, fault):
    with pytest.raises(CheckpointError, match=fault):
        load_published(_copy(shared.folder, tmp_path / "unlike", **settings))


def test_vocabularies_must_fit_the_tables(shared, tmp_path):
    source = _copy(shared.folder, tmp_path / "larger")
    numbers = json.loads((tmp_path / "larger" / "vocab.json").read_text())
    (tmp_path / "larger" / "vocab.json").write_text(json.dumps({**numbers, "more": len(numbers)}))
    with pytest.raises(
        CheckpointError, match=f"{len(numbers) + 1} pieces, and its table {len(numbers)} rows"
    ):
        load_published(source)
    (tmp_path / "larger" / "vocab.json").unlink()
    with pytest.raises(CheckpointError, match=r"holds none of vocab\.json"):
        load_published(source)


def test_without_a_network_the_message_says_what_to_do(monkeypatch, tmp_path):
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(CheckpointError, match=r"hf download Helsinki-NLP/opus-mt-en-de"):
        load_published("hf:Helsinki-NLP/opus-mt-en-de")


def test_a_file_alone_has_no_vocabulary(shared):
    with pytest.raises(CheckpointError, match="no vocabulary"):
        load_published(f"file:{shared.folder / 'model.safetensors'}", model="transformer_base")


def test_transformers_unlike_marian_have_no_key_table():
    with pytest.raises(ConfigError, match="norm 'pre'"):
        key_table("hf", MODELS["transformer_base"].with_changes({"norm": "pre"}))
