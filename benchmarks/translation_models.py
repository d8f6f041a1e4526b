"""What `translate.py` compares with: the same translator in other libraries, and a plain model to train."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import MarianConfig, MarianMTModel

from vitrail.data.text.subwords import PairVocabulary
from vitrail.data.text_preprocessing import PairPreprocessing
from vitrail.engines.loading import load_any
from vitrail.models import model_settings
from vitrail.models.checkpoint import LoadedModel, load_model
from vitrail.models.transformer import TransformerConfig
from vitrail.models.weights.conversion import export
from vitrail.nn.sinusoidal import sinusoidal_positions
from vitrail.tasks.translation.dataset import PairDataset
from vitrail.tasks.translation.opening import open_pairs
from vitrail.tasks.translation.settings import PairDataSettings

NEVER_ENDS = -30.0  # bias of the end, so that random weights write sentences of equal length
TOLERANCE = 1e-4  # of logits, between a model and its reordered copy


def open_data(source: str, languages: list[str]) -> PairDataset:
    """Open parallel text in two languages."""
    return open_pairs(source, settings=PairDataSettings(source=source, languages=tuple(languages)))


def make_random(data: PairDataset, name: str, vocabulary_size: int) -> LoadedModel:
    """Return a model of a named shape with random weights, which never ends a sentence by itself."""
    preprocessing = PairPreprocessing(languages=data.languages)
    texts = [preprocessing.prepare(side) for side in (data.train.sources, data.train.targets)]
    vocabulary = PairVocabulary.train(*texts, size=vocabulary_size)
    settings = model_settings(
        name,
        source_vocabulary_size=vocabulary.source.size,
        target_vocabulary_size=vocabulary.target.size,
        positions="sinusoidal_halves",
        output_bias=True,
    )
    config = TransformerConfig.from_tree({key: value for key, value in settings.items() if key != "name"})
    torch.manual_seed(0)
    from vitrail.engines.cpu import accelerate

    model = accelerate(config.build()).eval()
    with torch.no_grad():
        assert model.output_bias is not None
        model.output_bias[config.end_id] = NEVER_ENDS
    return LoadedModel(model, settings, preprocessing.model_dump(mode="json"), [], {}, vocabulary.to_files())


def load_run(source: str) -> LoadedModel:
    """Return a trained model in the order of channels that Marian has: all sines before all cosines.

    The channels of a post-norm Transformer may stand in any order, as long as all weights agree on it.
    """
    loaded = load_any(source)
    config = loaded.model.config
    if not isinstance(config, TransformerConfig) or (config.norm, config.mixer) != ("post", "attention"):
        raise SystemExit(f"{source}: transformers has Marian models alone: post-norm, attention, sinusoids")
    if config.positions not in ("sinusoidal", "sinusoidal_halves"):
        raise SystemExit(f"{source}: Marian has no positions {config.positions!r}")
    order = torch.arange(config.width)
    if config.positions == "sinusoidal":
        order = torch.cat((order[0::2], order[1::2]))
    changed = config.with_changes({"positions": "sinusoidal_halves", "output_bias": True})
    from vitrail.engines.cpu import accelerate

    model = accelerate(changed.build()).eval()
    state = {name: _reordered(name, value, order) for name, value in loaded.model.state_dict().items()}
    bias = "output.bias" if config.tie == "none" else "output_bias"
    state.setdefault(bias, torch.zeros(config.target_vocabulary_size))
    model.load_state_dict(state)
    source_row, target_row = torch.randint(config.target_vocabulary_size, (2, 1, 9))
    with torch.inference_mode():
        inputs = (source_row % config.source_vocabulary_size, torch.tensor([9]), target_row)
        difference = (model(*inputs) - loaded.model(*inputs)).abs().max().item()
    if difference > TOLERANCE:
        raise SystemExit(f"{source}: logits differ by {difference:.1e} after reordering")
    settings = {"name": loaded.model_settings["name"], **changed.model_dump(mode="json")}
    return loaded._replace(model=model, model_settings=settings)


def keep(loaded: LoadedModel, folder: Path) -> None:
    """Save a model for the processes of the benchmark."""
    loaded.save(folder)


def to_marian(folder: Path) -> MarianMTModel:
    """Return a saved model as the one of transformers."""
    loaded = load_model(folder)
    config: Any = loaded.model.config
    model = MarianMTModel(
        MarianConfig(
            vocab_size=config.source_vocabulary_size,
            decoder_vocab_size=config.target_vocabulary_size,
            d_model=config.width,
            encoder_layers=config.encoder_depth,
            decoder_layers=config.decoder_depth,
            encoder_attention_heads=config.num_heads,
            decoder_attention_heads=config.num_heads,
            encoder_ffn_dim=config.hidden_dim,
            decoder_ffn_dim=config.hidden_dim,
            activation_function={"silu": "swish"}.get(config.activation, config.activation),
            scale_embedding=config.scale_embedding,
            share_encoder_decoder_embeddings=config.tie == "all",
            tie_word_embeddings=config.tie != "none",
            pad_token_id=config.pad_id,
            eos_token_id=config.end_id,
            forced_eos_token_id=None,
            decoder_start_token_id=config.begin_id,
        )
    )
    state = export(loaded.model.state_dict(), source="hf", config=config)
    missing, unexpected = model.load_state_dict(state, strict=False)
    assert not unexpected
    assert all("embed_positions" in name for name in missing), missing
    return model.eval()


class PlainTransformer(nn.Module):
    """A translator of ``torch.nn.Transformer``, as a tutorial would write it; one table for everything.

    Args:
        config: whose shape it has; post-norm, without the two norms that torch adds at the ends.
    """

    table: Tensor

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.pad_id = config.pad_id
        size = max(config.source_vocabulary_size, config.target_vocabulary_size)
        self.embedding = nn.Embedding(size, config.width)
        self.transformer = nn.Transformer(
            config.width,
            config.num_heads,
            config.encoder_depth,
            config.decoder_depth,
            config.hidden_dim,
            config.dropout,
            activation="relu",
            batch_first=True,
        )
        self.transformer.encoder.norm = self.transformer.decoder.norm = None
        self.dropout = nn.Dropout(config.dropout)
        self.register_buffer("table", sinusoidal_positions(512, config.width))
        nn.init.normal_(self.embedding.weight, std=config.width**-0.5)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        """Return the logits of what follows each target token."""
        num_tokens = target.shape[1]
        causal = torch.ones(num_tokens, num_tokens, dtype=torch.bool, device=target.device).triu(1)
        is_padding = source == self.pad_id
        x = self.transformer(
            self._embed(source),
            self._embed(target),
            tgt_mask=causal,
            src_key_padding_mask=is_padding,
            memory_key_padding_mask=is_padding,
            tgt_is_causal=True,
        )
        return nn.functional.linear(x, self.embedding.weight)

    def _embed(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens) * self.embedding.embedding_dim**0.5
        return self.dropout(x + self.table[: tokens.shape[1]])


def _reordered(name: str, value: Tensor, order: Tensor) -> Tensor:
    """Return a tensor with the model's channels in another order."""
    owner, _, kind = name.rpartition(".")
    if name.endswith("_table.weight") or name == "output.weight":
        return value[:, order]
    if owner.endswith("_norm"):
        return value[order]
    if owner.endswith(("projection", "mlp.contract")):  # they write channels
        return value[order]
    reads_channels = owner.endswith(("qkv", "query", "key_value", "mlp.expand"))
    return value[:, order] if reads_channels and kind == "weight" else value
