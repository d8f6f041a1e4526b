"""Tokens and feature maps of image models: of pyramids, with several stages, and of plain ones, with one."""

from __future__ import annotations

from torch import nn

from vitrail.models.contract import ImageModelConfig, check_images
from vitrail.nn.feature_maps import map_to_tokens, run_stages, tokens_to_map
from vitrail.nn.tokens import FeatureMap, Grid, Images, Logits, Tokens


class Plain(nn.Module):
    """A model whose blocks all share the patches of one grid, after ``num_prefix`` other tokens."""

    num_prefix: int

    def tokens(self, images: Images) -> Tokens:
        """Return the tokens that the head reads: prefix tokens, then the grid row by row."""
        return self.tokens_and_grid(images)[0]

    def features(self, images: Images) -> list[FeatureMap]:
        """Return the only feature map, as a list like that of the stages of a pyramid."""
        tokens, grid = self.tokens_and_grid(images)
        return [tokens_to_map(tokens[:, self.num_prefix :], grid)]

    def tokens_and_grid(self, images: Images) -> tuple[Tokens, Grid]:
        """Return the tokens after the last norm, prefix tokens first, and the grid of the patches."""
        raise NotImplementedError


class Pyramid(nn.Module):
    """A stem, stages that each make the previous feature map coarser or wider, and a head on their mean."""

    config: ImageModelConfig
    stem: nn.Module
    stages: nn.ModuleList
    final: nn.Module
    """A norm and an activation, where the last stage does not end with them."""
    head: nn.Module

    def forward(self, images: Images) -> Logits:
        return self.head(self.tokens(images).mean(dim=1))

    def tokens(self, images: Images) -> Tokens:
        return map_to_tokens(self.final(self.features(images)[-1]))

    def features(self, images: Images) -> list[FeatureMap]:
        check_images(images, self.config)
        return run_stages(self.stages, self.stem(images))
