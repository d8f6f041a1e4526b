"""Probes of frozen features: against scikit-learn, on a folder of images, their cache, and the command."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import PredefinedSplit, cross_val_predict
from sklearn.neighbors import KNeighborsClassifier
from torch import nn

from making.saved_vit import save_vit
from making.small_models import CHANGES, VIT
from vitrail.cli import main
from vitrail.core.errors import ConfigError
from vitrail.engines.loading import load_any
from vitrail.models import build
from vitrail.studies import probing
from vitrail.studies.probing import (
    FeatureReader,
    choose_probe,
    fit_probe,
    image_part,
    probe,
    probe_logits,
    read_features,
    weighted_votes,
)
from vitrail.tasks.classification.opening import open_dataset
from vitrail.tasks.classification.task import TASK as CLASSIFICATION
from vitrail.tasks.request import read_asked


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VITRAIL_CACHE", str(tmp_path / "cache"))


def test_features_are_computed_once_and_are_those_of_the_model(
    tmp_path: Path, divided_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded = load_any(save_vit(tmp_path / "model", class_names=("cat", "dog")))
    dataset = open_dataset(divided_folder)
    reader = FeatureReader(*image_part(loaded))
    told: list[tuple[str, int, int]] = []
    features, labels = reader.read(dataset, "test", 4, lambda *event: told.append(event))

    pixels = torch.stack([reader.preprocessing.read(image) for image in dataset.test.images])
    with torch.inference_mode():
        expected = read_features(loaded.model, reader.preprocessing.normalise(pixels))
    assert torch.allclose(features, expected, atol=3e-2)  # products and the cache in half precision
    assert labels.tolist() == dataset.test.labels.tolist()
    assert told == [("features of test", 4, 6), ("features of test", 6, 6)]

    monkeypatch.setattr("vitrail.studies.probing.read_features", None)  # nothing is computed again
    assert torch.equal(reader.read(dataset, "test")[0], features)


def test_both_protocols_score_a_model_of_other_classes(tmp_path: Path, divided_folder: Path) -> None:
    saved = save_vit(tmp_path / "model", class_names=("cat", "dog"))
    near = probe(saved, divided_folder, protocol="knn", num_neighbours=3)
    linear = probe(saved, divided_folder)

    reader = FeatureReader(*image_part(load_any(saved)))
    dataset = open_dataset(divided_folder)
    train, validation, (features, labels) = (reader.read(dataset, name) for name in dataset.splits)
    bank = [torch.cat(pair) for pair in zip(train, validation, strict=True)]
    votes = weighted_votes(bank[0], bank[1], features, num_classes=3, num_neighbours=3)
    right = (votes.argmax(dim=-1) == labels).double().mean()
    assert near.scores["accuracy"] == pytest.approx(float(right))
    assert near.class_names == ("blue", "green", "red")
    assert near.signature["method"] == "weighted 3-nn of 15, temperature 0.07"

    strength = float(linear.signature["method"].split("C=")[1].split(",")[0])
    reference = LogisticRegression(C=strength, tol=1e-9, max_iter=5000)
    reference.fit(bank[0].double().numpy(), bank[1].numpy())
    expected = reference.score(features.double().numpy(), labels.numpy())
    assert linear.scores["accuracy"] == pytest.approx(expected)


def test_the_command_shows_scores_in_80_columns_and_counts_copies_of_training_images(
    tmp_path: Path,
    divided_folder: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    trained = read_asked(CLASSIFICATION, {"data.source": str(divided_folder)})
    monkeypatch.setattr(probing, "trained_experiment", lambda run: trained)
    for image in (divided_folder / "train" / "red").glob("*"):
        shutil.copy(image, divided_folder / "test" / "red" / f"again-{image.name}")
    arguments = ["probe", str(save_vit(tmp_path / "model")), str(divided_folder), "--protocol", "knn"]

    assert main(arguments) == 0
    shown = capsys.readouterr().out
    assert main([*arguments, "--json"]) == 0
    tree = json.loads(capsys.readouterr().out)

    assert "accuracy" in shown
    assert "method:weighted 5-nn of 15" in shown
    assert "4 of 11 are in the training data, too" in " ".join(shown.split())
    assert max(map(len, shown.splitlines())) <= 80
    assert tree["signature"]["features"] == "12 of model"
    assert main([*arguments, "--neighbours", "0"]) == 2


def test_numbers_that_are_not_positive_are_refused(tmp_path: Path, divided_folder: Path) -> None:
    with pytest.raises(ConfigError, match="temperature"):
        probe(save_vit(tmp_path / "model"), divided_folder, protocol="knn", temperature=0)


FAMILIES = {
    "vit": "vit_ti16",
    "mlp_mixer": "mixer_s16",
    "swin": "swin_t",
    "swinv2": "swinv2_t",
    "pvt": "pvt_t",
    "pvtv2": "pvtv2_b0",
    "mvit": "mvit_b16",
    "mvitv2": "mvitv2_t",
    "sequencer2d": "sequencer2d_s",
    "resnet": "resnet50",
    "bit": "bit_r50x1",
    "efficientnet": "efficientnet_b0",
}


@pytest.mark.parametrize("family", FAMILIES)
def test_the_head_makes_the_logits_of_the_features(family: str) -> None:
    model = build(FAMILIES[family], **CHANGES[family]).eval()
    images = torch.randn(2, 3, 32, 40)

    with torch.inference_mode():
        features, logits = read_features(model, images), model(images)
        head: nn.Module = model.head
        assert torch.allclose(head(features), logits, atol=1e-5)
    assert features.shape[0] == 2
    assert not head._forward_pre_hooks


def test_both_tokens_of_a_distilled_model_are_read() -> None:
    model = build("deit_ti16_distilled", **VIT).eval()
    images = torch.randn(2, 3, 16, 24)

    with torch.inference_mode():
        tokens, features = model.tokens(images), read_features(model, images)

    assert torch.allclose(features, tokens[:, :2].flatten(1))


def clusters(num_images: int, seed: int, spread: float = 1.3) -> tuple[torch.Tensor, torch.Tensor]:
    """Draw points of three classes around corners of a cube of five dimensions."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(num_images) % 3
    return torch.eye(5)[labels] + spread * torch.randn(num_images, 5, generator=generator), labels


@pytest.mark.parametrize("inverse_strength", [0.01, 1.0, 30.0])
def test_weights_and_probabilities_are_those_of_scikit_learn(inverse_strength: float) -> None:
    features, labels = clusters(61, seed=0)
    probe = fit_probe(features, labels, num_classes=3, inverse_strength=inverse_strength)

    reference = LogisticRegression(C=inverse_strength, tol=1e-9, max_iter=3000)
    reference.fit(features.double().numpy(), labels.numpy())

    np.testing.assert_allclose(probe.weight.numpy(), reference.coef_, atol=2e-4)
    ours = probe_logits(probe, features).softmax(dim=-1).numpy()
    np.testing.assert_allclose(ours, reference.predict_proba(features.double().numpy()), atol=1e-4)


def test_a_start_changes_nothing_but_the_time() -> None:
    features, labels = clusters(40, seed=1)
    cold = fit_probe(features, labels, num_classes=3)
    warm = fit_probe(
        features,
        labels,
        num_classes=3,
        start=fit_probe(features, labels, num_classes=3, inverse_strength=9.0),
    )
    assert torch.allclose(cold.weight, warm.weight, atol=1e-4)


def test_the_strength_is_the_best_on_validation() -> None:
    train, validation = clusters(45, seed=2), clusters(400, seed=3)
    fits: list[int] = []
    chosen = choose_probe(train, validation, num_classes=3, on_fit=fits.append)

    assert fits == list(range(1, len(chosen.tried) + 1))
    assert 11 <= len(fits) <= 15
    best = max(chosen.tried.values())
    assert chosen.tried[chosen.strength] == best
    for strength, score in chosen.tried.items():
        if strength < 1e-3:  # where scikit-learn's biases are coarser than the weights are large
            continue
        reference = LogisticRegression(C=strength, tol=1e-9, max_iter=3000)
        reference.fit(train[0].double().numpy(), train[1].numpy())
        expected = reference.score(validation[0].double().numpy(), validation[1].numpy())
        assert score == pytest.approx(expected, abs=2 / 400)  # images may lie on a border

    both = [torch.cat(pair) for pair in zip(train, validation, strict=True)]
    again = fit_probe(both[0], both[1], num_classes=3, inverse_strength=chosen.strength)
    assert torch.allclose(chosen.probe.weight, again.weight, atol=1e-6)


@pytest.mark.parametrize("num_validation", [0, 10])
def test_few_validation_images_decide_together_with_the_others(num_validation: int) -> None:
    features, labels = clusters(61, seed=4)
    first = 61 - num_validation
    chosen = choose_probe(
        (features[:first], labels[:first]), (features[first:], labels[first:]), num_classes=3
    )

    order = np.argsort(labels.numpy(), kind="stable")
    folds = PredefinedSplit(np.arange(61)[np.argsort(order)] % 5)
    for strength in (0.01, 1.0, 100.0):
        reference = LogisticRegression(C=strength, tol=1e-9, max_iter=3000)
        predicted = cross_val_predict(reference, features.double().numpy(), labels.numpy(), cv=folds)
        assert chosen.tried[strength] == pytest.approx(np.mean(predicted == labels.numpy()), abs=1e-9)


def test_of_strengths_that_are_right_equally_often_that_of_the_most_probable_labels_is_chosen() -> None:
    train, validation = clusters(45, seed=2, spread=0.1), clusters(100, seed=3, spread=0.1)
    chosen = choose_probe(train, validation, num_classes=3)

    tied = [strength for strength, score in chosen.tried.items() if score == 1.0]
    assert len(tied) > 5

    def loss(strength: float) -> float:
        probe = fit_probe(*train, num_classes=3, inverse_strength=strength)
        return float(F.cross_entropy(probe_logits(probe, validation[0]), validation[1]))

    losses = {strength: loss(strength) for strength in tied}
    assert losses[chosen.strength] == pytest.approx(min(losses.values()), abs=1e-6)
    assert losses[chosen.strength] < 0.01 < losses[min(tied)]


def drawn(seed: int = 0) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    bank, queries = torch.randn(31, 5, generator=generator), torch.randn(7, 5, generator=generator)
    return bank, torch.randint(3, (31,), generator=generator), queries


def test_votes_are_those_of_a_loop_over_all_pairs() -> None:
    bank, labels, queries = drawn()
    votes = weighted_votes(bank, labels, queries, num_classes=3, num_neighbours=11, temperature=0.2)

    for query, row in zip(queries.tolist(), votes.tolist(), strict=True):
        near = []
        for known, label in zip(bank.tolist(), labels.tolist(), strict=True):
            cosine = sum(a * b for a, b in zip(query, known, strict=True))
            near.append((cosine / math.hypot(*query) / math.hypot(*known), label))
        sums = [0.0, 0.0, 0.0]
        for similarity, label in sorted(near, reverse=True)[:11]:
            sums[label] += math.exp(similarity / 0.2)
        np.testing.assert_allclose(row, np.array(sums) / sum(sums), rtol=1e-4)


def test_the_answer_is_that_of_scikit_learn_with_the_same_weights() -> None:
    bank, labels, queries = drawn(1)
    reference = KNeighborsClassifier(
        n_neighbors=9, metric="cosine", weights=lambda distance: np.exp((1 - distance) / 0.07)
    ).fit(bank.numpy(), labels.numpy())

    votes = weighted_votes(bank, labels, queries, num_classes=3, num_neighbours=9)

    np.testing.assert_allclose(votes.numpy(), reference.predict_proba(queries.numpy()), atol=1e-4)


def test_parts_of_the_queries_and_a_small_bank_change_nothing(monkeypatch) -> None:
    bank, labels, queries = drawn(2)
    whole = weighted_votes(bank, labels, queries, num_classes=4, num_neighbours=99)
    monkeypatch.setattr(probing, "ROWS_AT_ONCE", 3)

    assert torch.allclose(whole, weighted_votes(bank, labels, queries, num_classes=4, num_neighbours=31))
    assert torch.allclose(whole.sum(dim=-1), torch.ones(7))
    assert not whole[:, 3].any()
