"""Captions as tokens, images as pixels or as features that were kept."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from vitrail.core.errors import CheckpointError, DataError
from vitrail.data.feature_cache import FeatureCache, cache_folder, digest_of
from vitrail.data.preprocessing import Preprocessing
from vitrail.data.source import ImageSource
from vitrail.data.text.subwords import (
    SentencePieceSubwords,
    Subwords,
    vocabulary_from_files,
    vocabulary_to_files,
)
from vitrail.data.text.words import WordVocabulary, caption_words, join_words
from vitrail.data.text_preprocessing import CaptionPreprocessing
from vitrail.tasks.captioning.dataset import CaptionSplit
from vitrail.tasks.captioning.samples import CaptionSource

PREPROCESSING = CaptionPreprocessing(images=Preprocessing(image_size=(4, 6), resize="squash"))
CAPTIONS = [["A dog runs.", "the dog is running fast now"], ["A cat!", "cats", "a cat sleeps"]]


@pytest.fixture
def split() -> CaptionSplit:
    return CaptionSplit(np.arange(2 * 4 * 6 * 3, dtype=np.uint8).reshape(2, 4, 6, 3), CAPTIONS, ["x", "y"])


@pytest.fixture
def words() -> WordVocabulary:
    texts = [text for captions in CAPTIONS for text in PREPROCESSING.prepare(captions)]
    return WordVocabulary.train(texts, size=50)


def test_words_are_lower_case_without_punctuation_and_joined_again() -> None:
    text = "The dog\u2019s ball - it ISN'T red, they'll see 1,000 T-shirts!"
    words = caption_words(text)
    assert " ".join(words) == "the dog 's ball it is n't red they 'll see 1,000 t-shirts"
    assert join_words(words) == "the dog's ball it isn't red they'll see 1,000 t-shirts"


def test_a_vocabulary_of_words_writes_and_reads_what_it_knows(words: WordVocabulary) -> None:
    assert isinstance(words, Subwords)
    assert words.words[0] == "a"  # the most frequent one
    assert words.size == 4 + len(words.words)
    (row,) = words.encode(["a dog flies"])
    assert row[2] == words.unknown_id
    assert words.decode([[words.begin_id, *row, words.end_id]]) == ["a dog"]
    assert words.pieces([*row, words.end_id]) == ["\u2581a", "\u2581dog", "<unk>", "</s>"]
    again = vocabulary_from_files(vocabulary_to_files(words))
    assert again.encode(["a dog"]) == words.encode(["a dog"])


def test_rare_words_are_unknown_and_words_may_be_dropped() -> None:
    words = WordVocabulary.train(["a a b", "b c"], size=6, min_count=2)
    assert words.words == ("a", "b")
    assert WordVocabulary.train(["a a b"], size=5).words == ("a",)
    first = words.encode_sampled(["a b a b a b"], dropout=0.5, seed=1)
    assert first == words.encode_sampled(["a b a b a b"], dropout=0.5, seed=1)
    assert 0 < first[0].count(words.unknown_id) < 6
    with pytest.raises(DataError, match="none of 1 words occurs 3 times"):
        WordVocabulary.train(["a a"], size=9, min_count=3)


def test_subwords_are_stored_as_well_and_damage_is_told() -> None:
    subwords = SentencePieceSubwords.train(["a dog runs", "a cat sleeps"], size=30)
    again = vocabulary_from_files(vocabulary_to_files(subwords))
    assert again.encode(["a dog"]) == subwords.encode(["a dog"])
    with pytest.raises(CheckpointError, match="no vocabulary beside its weights"):
        vocabulary_from_files({})
    with pytest.raises(CheckpointError, match="not a usable vocabulary"):
        vocabulary_from_files({"words.json": b"{}"})


def test_a_sample_has_pixels_and_every_caption(split: CaptionSplit, words: WordVocabulary) -> None:
    source = CaptionSource(split, words, PREPROCESSING, cache=True)
    sample = source.load(1, None)
    assert len(source) == 2
    assert torch.equal(sample.content, torch.from_numpy(split.images[1]).permute(2, 0, 1))
    assert words.decode(sample.rows) == ["a cat", "cats", "a cat sleeps"]
    assert (sample.captions, sample.index) == (tuple(CAPTIONS[1]), 1)


def test_training_draws_captions_anew_and_leaves_out_long_ones(
    split: CaptionSplit, words: WordVocabulary
) -> None:
    source = CaptionSource(split, words, PREPROCESSING, captions_per_image=1, max_length=4)
    seen = set()
    for seed in range(30):
        generator = torch.Generator().manual_seed(seed)
        (row,) = source.load(1, generator).rows
        seen.add(words.decode([row])[0])
        assert words.decode(source.load(0, generator).rows) == ["a dog runs"]
    assert seen == {"a cat", "cats", "a cat sleeps"}
    shortest = CaptionSource(split, words, PREPROCESSING, max_length=2)
    assert words.decode(shortest.load(0, torch.Generator()).rows) == ["a dog runs"]  # all are too long
    assert words.decode(shortest.load(1, torch.Generator()).rows) == ["cats"]


def make_features(pixels: Tensor) -> Tensor:
    return pixels.float().flatten(2).transpose(1, 2)[:, :5] / 255


class Counting:
    """Make features, and count the images that were asked for."""

    def __init__(self) -> None:
        self.images = 0

    def __call__(self, pixels: Tensor) -> Tensor:
        self.images += len(pixels)
        return make_features(pixels)


def cache_of(split: CaptionSplit, path: Path, encode: object) -> FeatureCache:
    images = ImageSource(split.unlabelled, PREPROCESSING.images)
    return FeatureCache(images, encode, path=path, shape=(5, 3), batch_size=1)  # type: ignore[arg-type]


def test_features_are_computed_once_and_found_again(
    split: CaptionSplit, words: WordVocabulary, tmp_path: Path
) -> None:
    encode, path = Counting(), tmp_path / "kept" / "x.f16"
    features = cache_of(split, path, encode)
    source = CaptionSource(split, words, PREPROCESSING, features=features)
    expected = make_features(torch.from_numpy(split.images).permute(0, 3, 1, 2)).half()
    for index in (1, 0, 1):
        assert torch.equal(source.load(index, torch.Generator()).content, expected[index])
    assert torch.equal(cache_of(split, path, encode).load(0), expected[0])
    assert encode.images == 2
    assert [file.name for file in path.parent.iterdir()] == ["x.f16"]
    assert torch.equal(pickle.loads(pickle.dumps(cache_of(split, path, make_features))).load(1), expected[1])


def test_an_unfinished_file_goes_on_where_it_was(split: CaptionSplit, tmp_path: Path) -> None:
    path, encode = tmp_path / "x.f16", Counting()

    class Failing(Counting):
        def __call__(self, pixels: Tensor) -> Tensor:
            if self.images:
                raise KeyboardInterrupt
            return super().__call__(pixels)

    with pytest.raises(KeyboardInterrupt):
        cache_of(split, path, Failing()).prepare()
    assert not path.exists()
    with (tmp_path / "x.partial").open("ab") as file:
        file.write(b"half an image")
    features = cache_of(split, path, encode)
    features.prepare()
    assert encode.images == 1
    expected = make_features(torch.from_numpy(split.images).permute(0, 3, 1, 2)).half()
    assert torch.equal(torch.stack([features.load(0), features.load(1)]), expected)


def test_a_file_of_another_size_is_refused(split: CaptionSplit, tmp_path: Path) -> None:
    (tmp_path / "x.f16").write_bytes(b"short")
    with pytest.raises(DataError, match=r"has 5 bytes, expected 60|5 bytes"):
        cache_of(split, tmp_path / "x.f16", make_features).prepare()


def test_a_place_that_cannot_be_written_is_told(split: CaptionSplit, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(CheckpointError, match="could not be written"):
        cache_of(split, tmp_path / "file" / "x.f16", make_features).prepare()


def test_the_folder_of_caches_can_be_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("VITRAIL_CACHE", str(tmp_path))
    assert cache_folder() == tmp_path
    assert digest_of("a", b"b") == digest_of(b"a", "b")
    assert digest_of("ab", "") != digest_of("a", "b")
    copied = copy.deepcopy(PREPROCESSING)
    assert copied == PREPROCESSING
