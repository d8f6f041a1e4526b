"""BERTs compute what those of transformers do from the same files, and cut words as their tokenizer does."""

from __future__ import annotations

import pytest
import safetensors.torch
import torch
from transformers import BertTokenizer

from making.bert_folder import BERT_PIECES, write_bert_folder
from making.references import key_table
from vitrail.core.errors import CheckpointError
from vitrail.data.text.word_pieces import WordPieces
from vitrail.models import MODELS
from vitrail.models.weights.published import convert_to_folder, load_published
from vitrail.models.weights.table import to_theirs
from vitrail.tasks.labelling.predictor import Labeller

TEXTS = ["A dog runs.", "Running a caf\u00e9", "dog's unknown, a", "[SEP] dog"]


@pytest.fixture(params=["sentence", "words"])
def example(request, tmp_path):
    return write_bert_folder(tmp_path, request.param), load_published(f"hf:{tmp_path}"), tmp_path


def test_logits_are_those_of_transformers(example):
    reference, loaded, folder = example
    inputs = BertTokenizer.from_pretrained(folder)(TEXTS, return_tensors="pt", padding=True)
    with torch.no_grad():
        expected, states = reference(**inputs).logits, reference.bert(**inputs).last_hidden_state
        lengths = inputs["attention_mask"].sum(dim=1)
        found = loaded.model(inputs["input_ids"], lengths)
        found_states = loaded.model.states(inputs["input_ids"], lengths)
    is_there = inputs["attention_mask"].bool()
    torch.testing.assert_close(found_states[is_there], states[is_there], rtol=1e-5, atol=1e-5)
    if loaded.config.labels == "words":
        found, expected = found[is_there], expected[is_there]
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
    assert loaded.class_names == [f"LABEL_{number}" for number in range(5)]


@pytest.mark.parametrize("lower_case", [True, False])
def test_words_are_cut_as_by_their_tokenizer(tmp_path, lower_case):
    write_bert_folder(tmp_path, "none", lower_case=lower_case)
    theirs = BertTokenizer(str(tmp_path / "vocab.txt"), do_lower_case=lower_case)
    ours = WordPieces(BERT_PIECES, lower_case=lower_case)
    for text in [*TEXTS, "\u4e2d\u6587 dog\tRUNS", "", "x" * 200]:
        if "[SEP]" not in text:  # which their tokenizer takes for the special token
            assert ours.encode([text])[0] == theirs(text, add_special_tokens=False)["input_ids"], text
    again = WordPieces.from_bytes(ours.to_bytes())
    assert again.encode(["dog runs"]) == [[6, 7, 8]]
    assert ours.decode([[2, 6, 7, 8, 3]]) == ["dog runs"]
    assert ours.encode(["[SEP]"]) != [[3]]


def test_weights_without_a_classifier_get_one_of_zeros(tmp_path):
    write_bert_folder(tmp_path, "none")
    loaded = load_published(f"hf:{tmp_path}")
    assert loaded.class_names == ["(no classes)"]
    assert loaded.model.head.weight.abs().max() == 0
    assert loaded.config.pool == "begin"
    (tmp_path / "1_Pooling").mkdir()
    (tmp_path / "1_Pooling" / "config.json").write_text('{"pooling_mode_mean_tokens": true}')
    assert load_published(f"hf:{tmp_path}").config.pool == "mean"


def test_the_key_table_leads_back(example):
    reference, loaded, _ = example
    table = key_table("hf", loaded.config)
    back = to_theirs(table, loaded.model.state_dict())
    theirs = {name: tensor for name, tensor in reference.state_dict().items() if not name.endswith("_ids")}
    assert back.keys() == theirs.keys()
    assert all(torch.equal(back[name], tensor) for name, tensor in theirs.items())


def test_a_folder_of_ours_labels_alike(example, tmp_path):
    _, loaded, folder = example
    lines = list(convert_to_folder(f"hf:{folder}", tmp_path / "ours"))
    assert any("5 labels, 14 subwords" in line for line in lines)
    before, after = (Labeller(source).label(["A dog runs."]) for source in (loaded, tmp_path / "ours"))
    assert before == after
    assert Labeller(loaded).embed("a dog")[0] == ["[CLS]", "a", "dog", "[SEP]"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [({"hidden_act": "relu"}, "hidden_act is 'relu'"), ({"is_decoder": True}, "is_decoder")],
)
def test_other_kinds_are_refused(tmp_path, changes, message):
    write_bert_folder(tmp_path, "sentence", **changes)
    with pytest.raises(CheckpointError, match=message):
        load_published(f"hf:{tmp_path}")


def test_damaged_folders_are_refused(tmp_path):
    write_bert_folder(tmp_path, "sentence")
    (tmp_path / "vocab.txt").write_text("a\ndog\n")
    with pytest.raises(CheckpointError, match=r"lack \[PAD\]"):
        load_published(f"hf:{tmp_path}")
    state = safetensors.torch.load_file(tmp_path / "model.safetensors")
    state.pop("bert.embeddings.LayerNorm.weight")
    (tmp_path / "vocab.txt").write_text("\n".join(BERT_PIECES) + "\n")
    safetensors.torch.save_file(state, tmp_path / "model.safetensors")
    with pytest.raises(CheckpointError, match=r"LayerNorm.weight"):
        load_published(f"hf:{tmp_path}")


def test_the_parameters_are_counted_as_published():
    # google-bert/bert-base-uncased and bert-large-uncased with the pooler: 109,482,240 and 335,141,888;
    # all-MiniLM-L6-v2 without it: 22,713,216 - 384 * 385; each with a head of two labels
    wanted = {"bert_base": 109_482_240, "bert_large": 335_141_888, "minilm_l6": 22_713_216 - 384 * 385}
    for name, parameters in wanted.items():
        with torch.device("meta"):
            model = MODELS[name].build()
        head = sum(parameter.numel() for parameter in model.head.parameters())
        assert sum(parameter.numel() for parameter in model.parameters()) - head == parameters
