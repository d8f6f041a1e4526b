"""What every registered captioner must do, whatever its family: run over all of them, made small."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from making.recorded_steps import assert_steps_lead_to_the_map
from making.small_models import build_shaken, small_configs
from vitrail.core.errors import CheckpointError
from vitrail.interpret import record_attention
from vitrail.models import build
from vitrail.models.contract import CaptionModel, CaptionModelConfig
from vitrail.models.decoding import beam_search, greedy

BEGIN, END, PAD = 1, 2, 0


CONFIGS = small_configs(CaptionModelConfig)


@pytest.fixture(params=sorted(CONFIGS))
def model(request: pytest.FixtureRequest) -> nn.Module:
    return build_shaken(CONFIGS[request.param], std=0.05)


@pytest.fixture
def images() -> Tensor:
    return torch.randn(3, 3, 16, 12)


@pytest.fixture
def captions() -> Tensor:
    return torch.cat((torch.full((3, 2, 1), BEGIN), torch.randint(4, 13, (3, 2, 4))), dim=2)


def test_there_is_a_logit_for_every_token_of_every_caption(model, images, captions):
    assert isinstance(model, CaptionModel)
    output = model(images, captions)
    assert output.logits.shape == (3, 2, 5, 13)
    assert output.logits.isfinite().all()
    if output.attention is not None:
        num_patches = model.encode(images).features.shape[1]
        assert output.attention.shape == (3, 2, 5, num_patches)
        torch.testing.assert_close(output.attention.sum(dim=-1), torch.ones(3, 2, 5))


def test_cells_that_were_kept_give_what_the_images_give(model, images, captions):
    seen = model.encode(images)
    assert seen.features.shape[1:] == (seen.grid[0] * seen.grid[1], model.encoder.dim)
    torch.testing.assert_close(model(seen.features, captions).logits, model(images, captions).logits)
    assert seen.grid == model.encoder.grid


def test_another_size_of_image_is_captioned_too(model, captions):
    assert model(torch.randn(3, 3, 21, 34), captions).logits.isfinite().all()


def test_a_caption_beside_others_is_scored_as_alone(model, images, captions):
    together = model(images, captions).logits
    alone = model(images[1:2], captions[1:2, 1:]).logits
    torch.testing.assert_close(together[1:2, 1:], alone, rtol=1e-5, atol=1e-5)


def test_a_token_does_not_see_those_after_it(model, images, captions):
    changed = captions.clone()
    changed[..., 3] = 3
    before, after = model(images, captions).logits, model(images, changed).logits
    torch.testing.assert_close(before[:, :, :3], after[:, :, :3], rtol=1e-5, atol=1e-5)
    assert not torch.allclose(before[:, :, 3:], after[:, :, 3:])


def test_steps_give_what_the_whole_caption_gives(model, images, captions):
    expected = model(images, captions).logits.flatten(0, 1)
    state = model.start(images).expand(2)
    for place in range(captions.shape[2]):
        logits, state = model.step(captions[..., place].flatten(), state)
        torch.testing.assert_close(logits, expected[:, place], rtol=1e-4, atol=1e-5)


def test_recorded_steps_lead_to_the_maps_of_whole_captions_and_single_words(model, images, captions):
    with torch.no_grad(), record_attention(model, keep_qkv=True) as maps:
        model(images, captions)
        model.step(torch.full((6,), BEGIN), model.start(images).expand(2))
    cross = [each for each in maps if each.kind == "cross"]
    assert cross
    for each in cross:
        assert_steps_lead_to_the_map(each)


def test_greedy_and_beam_caption_it(model, images):
    limits = torch.full((3,), 6)
    settings = {"begin_id": BEGIN, "end_id": END, "pad_id": PAD, "max_lengths": limits}
    first = greedy(model, model.start(images), **settings)
    best = beam_search(model, model.start(images), beam_size=3, num_best=2, **settings)
    assert [len(each) for each in best] == [2, 2, 2]
    for one, other in best:  # those that were cut off stand behind those that ended
        assert (one.is_finished, one.score) >= (other.is_finished, other.score)
    assert all(len(each.tokens) <= 6 for each in first)
    (alone,) = greedy(model, model.start(images[1:2]), **settings | {"max_lengths": limits[:1]})
    assert alone.tokens == first[1].tokens


def test_gradients_reach_everything_but_a_frozen_encoder(model, images, captions):
    model.train()
    output = model(images, captions)
    loss = output.logits.square().sum()
    if output.attention is not None:
        loss = loss + output.attention.square().sum()
    loss.backward()
    for name, parameter in model.named_parameters():
        if name.startswith("encoder.") and model.config.encoder_frozen:
            assert parameter.grad is None
            assert not parameter.requires_grad
        elif not name.startswith("encoder."):
            assert parameter.grad is not None, name
            assert parameter.grad.abs().max() > 0 or name.endswith("key_projection.bias"), name
    assert model.encoder.training != model.config.encoder_frozen


def test_an_encoder_takes_the_weights_of_its_image_model(images):
    config = CONFIGS["a frozen encoder"]
    trained = config.encoder_config.build().eval()
    captioner = config.build()
    captioner.encoder.take_weights(trained)
    features = trained.features(images)[-1]
    pooled = torch.nn.functional.avg_pool2d(features, 2, ceil_mode=True, count_include_pad=False)
    torch.testing.assert_close(captioner.encode(images).features, pooled.flatten(2).transpose(1, 2))


def test_weights_of_another_model_are_refused(images):
    captioner = CONFIGS["a frozen encoder"].build()
    with pytest.raises(CheckpointError, match="differ from the encoder in"):
        captioner.encoder.take_weights(build("vit_nano", width=24, depth=1))
