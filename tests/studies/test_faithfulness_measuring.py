"""The perturbation test of a whole model's explanations."""

from __future__ import annotations

import pytest
import torch

from making.small_models import RESNET, SWIN, VIT
from vitrail.core.errors import ConfigError, DataError
from vitrail.data.preprocessing import Preprocessing
from vitrail.models import build, model_settings
from vitrail.models.checkpoint import LoadedModel
from vitrail.studies.faithfulness import measure_faithfulness
from vitrail.tasks.classification.predictor import Predictor

NAMES = ["a", "b", "c", "d", "e"]


def _predictor(name: str, changes: dict) -> Predictor:
    torch.manual_seed(3)
    preprocessing = Preprocessing(image_size=(16, 24)).model_dump(mode="json")
    return Predictor(
        LoadedModel(build(name, **changes), model_settings(name, **changes), preprocessing, NAMES, {})
    )


def _images(count: int) -> list[torch.Tensor]:
    torch.manual_seed(8)
    return list(torch.randint(0, 256, (count, 3, 16, 24), dtype=torch.uint8))


@pytest.mark.parametrize(
    ("name", "changes", "methods", "grid"),
    [
        ("vit_b16", VIT, ["relevance", "rollout", "attention", "gradient_input", "random"], (4, 6)),
        ("swin_t", SWIN, ["relevance", "attention", "gradient_input", "random"], (8, 12)),
        ("resnet18", RESNET, ["gradient_input", "random"], (8, 12)),
    ],
)
def test_the_methods_that_suit_a_model_are_measured_on_the_same_cells(name, changes, methods, grid):
    done = []
    found = measure_faithfulness(_predictor(name, changes), _images(2), num_steps=4, on_image=done.append)

    assert list(found.deletion) == list(found.insertion) == methods
    assert found.grid == grid
    assert done == [1, 2]
    for curves in (*found.deletion.values(), *found.insertion.values()):
        assert curves.shape == (2, 5)
        assert ((curves >= 0) & (curves <= 1)).all()
    # Nothing covered is the image and all covered the filling, whatever the order.
    for method in methods:
        assert found.deletion[method][:, 0] == pytest.approx(found.insertion[method][:, -1], abs=1e-5)
        assert found.deletion[method][:, -1] == pytest.approx(found.insertion[method][:, 0], abs=1e-5)
        assert found.deletion[method][:, 0] == pytest.approx(found.deletion["random"][:, 0], abs=1e-5)


def test_chosen_methods_are_measured_beside_a_random_order():
    found = measure_faithfulness(
        _predictor("vit_b16", VIT), _images(1), methods=["occlusion"], num_steps=2, filling="mean"
    )
    assert list(found.deletion) == ["occlusion", "random"]


def test_a_method_that_is_named_twice_is_measured_once():
    names = ["attention", "gradient_input", "attention"]
    found = measure_faithfulness(_predictor("vit_b16", VIT), _images(2), methods=names, num_steps=2)

    assert list(found.deletion) == ["attention", "gradient_input", "random"]
    assert {curves.shape for curves in found.deletion.values()} == {(2, 3)}


def test_an_empty_list_of_methods_is_refused():
    with pytest.raises(ConfigError, match="no method was named"):
        measure_faithfulness(_predictor("vit_b16", VIT), _images(2), methods=[])


def test_covering_what_occlusion_names_hurts_more_than_covering_at_random():
    """Even without training: occlusion measures what deletion then does, one cell at a time."""
    found = measure_faithfulness(
        _predictor("resnet18", RESNET), _images(4), methods=["occlusion"], num_steps=8, filling="mean"
    )
    scores = {score.method: score for score in found.scores()}
    assert scores["occlusion"].deletion_against["random"].mean < 0


def test_bad_requests_are_refused():
    predictor = _predictor("swin_t", SWIN)
    with pytest.raises(ConfigError, match="Did you mean 'relevance'"):
        measure_faithfulness(predictor, _images(1), methods=["relevnce"])
    with pytest.raises(ConfigError, match="no filling 'noise'"):
        measure_faithfulness(predictor, _images(1), filling="noise")
    with pytest.raises(ConfigError, match="do not attend over one set of tokens"):
        measure_faithfulness(predictor, _images(1), methods=["rollout"])
    with pytest.raises(DataError, match="no image was given"):
        measure_faithfulness(predictor, [])
