"""What image models of stages have in common: the feature map of each stage, and the tokens of the last."""

from __future__ import annotations

from torch import nn

from vitrail.models.contract import ImageModelConfig, check_images
from vitrail.nn.feature_maps import map_to_tokens, run_stages
from vitrail.nn.tokens import FeatureMap, Images, Tokens


class Pyramid(nn.Module):
    """A stem, stages that each make the previous feature map coarser or wider, and a final layer."""

    config: ImageModelConfig
    stem: nn.Module
    stages: nn.ModuleList
    final: nn.Module

    def tokens(self, images: Images) -> Tokens:
        return map_to_tokens(self.final(self.features(images)[-1]))

    def features(self, images: Images) -> list[FeatureMap]:
        check_images(images, self.config)
        return run_stages(self.stages, self.stem(images))
