"""The models of other libraries, and ours with their weights, as engines that ``inference.py`` measures.

Each is built in a process of its own (``vitrail.engines.remote``): ``build_peer`` and ``build_ours``
return something with ``run(inputs)``. The weights are random, the same for a library and ours where a
conversion exists; speed does not depend on them.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

TIMM = {
    "vit_b16": "vit_base_patch16_224",
    "vit_ti16": "vit_tiny_patch16_224",
    "swin_t": "swin_tiny_patch4_window7_224",
    "mvitv2_t": "mvitv2_tiny",
}
TORCHVISION = {"vit_b16": "vit_b_16", "swin_t": "swin_t"}
PEERS = ("timm", "timm autocast", "timm compiled", "transformers", "torchvision", "onnxruntime", "openvino")
CALIBRATION_BATCHES = 4
SEED = 0


class Peer:
    """A function of images as an engine.

    Args:
        name: of the side.
        forward: makes the answer of a batch.
    """

    def __init__(self, name: str, forward: Callable[[torch.Tensor], Any]) -> None:
        self.name, self.forward = name, forward

    def run(self, inputs: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
        answer = self.forward(inputs[0])
        if isinstance(answer, torch.Tensor):
            return (answer.float(),)
        if isinstance(answer, tuple | list):
            return tuple(each.float() for each in answer)
        if hasattr(answer, "pred_boxes"):
            return answer.logits.float(), answer.pred_boxes.float()
        return (answer.logits.float(),)


def build_peer(side: str, *, model: str, precision: str, size: list[int]) -> Peer:
    """Return another library's model.

    Args:
        side: a name of ``PEERS``.
        model: our name of it.
        precision: float32, bfloat16 or int8.
        size: height and width of the images.
    """
    if side in ("onnxruntime", "openvino"):
        return Peer(
            side, {"onnxruntime": plain_onnx, "openvino": plain_openvino}[side](model, precision, size)
        )
    module = reference_model("transformers" if side == "transformers" else side.split()[0], model, size)
    images_type = torch.float32
    autocasts = precision == "bfloat16" and side == "timm autocast"
    if side == "timm autocast" and precision != "bfloat16":
        raise ValueError("autocast is for bfloat16")
    if precision == "bfloat16" and not autocasts:
        module, images_type = module.bfloat16(), torch.bfloat16
    if precision == "int8":
        if side == "timm compiled":
            raise ValueError("torch.compile has no int8 of its own")
        from torch.ao.quantization import quantize_dynamic

        module = quantize_dynamic(module, {torch.nn.Linear}, dtype=torch.qint8)
    if side == "timm compiled":
        module = torch.compile(module)

    def forward(images: torch.Tensor) -> Any:
        with torch.inference_mode(), torch.autocast("cpu", torch.bfloat16, enabled=autocasts):
            return module(images.to(images_type))

    return Peer(side, forward)


def build_ours(engine: str, *, model: str, precision: str, size: list[int]) -> Any:
    """Return our engine with the weights of the reference model.

    Args:
        engine: a name of ``vitrail.engines.contract.ENGINES``.
        model: our name of it.
        precision: float32, bfloat16 or int8.
        size: height and width of the images.
    """
    from vitrail.engines.contract import build_engine
    from vitrail.engines.export.tracing import is_detector

    loaded = ours_with_their_weights(model, size)
    sizes = (torch.tensor([size, size]),) if is_detector(loaded.model) else ()
    calibration = [(images, *sizes) for images in random_batches(size)] if precision == "int8" else []
    return build_engine(loaded, engine=engine, precision=precision, device="cpu", calibration=calibration)


def ours_with_their_weights(model: str, size: list[int]) -> Any:
    """Return our model as it would be loaded, with the weights that the reference model has."""
    from vitrail.models.weights.conversion import convert, convert_to
    from vitrail.studies.benching import build_named

    loaded = build_named(model)
    loaded = loaded._replace(preprocessing={**loaded.preprocessing, "image_size": size})
    if model.startswith("detr"):
        theirs = reference_model("transformers", model, size)
        state = convert_to(theirs.state_dict(), source="hf", config=loaded.model.config)
    elif size == [224, 224]:
        state = convert(reference_model("timm", model, size).state_dict(), source="timm", model=model)
    else:
        return loaded  # tables of positions of another size: the random weights are ours
    loaded.model.load_state_dict(state)
    return loaded


def reference_model(library: str, model: str, size: list[int]) -> torch.nn.Module:
    """Return a model of another library with random weights, in evaluation mode."""
    torch.manual_seed(SEED)
    if library == "timm":
        from reference_models import import_timm

        import_timm()
        import timm

        changes = {} if size == [224, 224] else {"img_size": tuple(size)}
        module = timm.create_model(_known(TIMM, model, library), num_classes=1000, **changes)
        for parameter in module.parameters():  # a head of zeros would make all logits equal
            if not parameter.any():
                torch.nn.init.normal_(parameter, std=0.02)
        return module.eval()
    if library == "torchvision":
        from reference_models import import_timm

        import_timm()
        import torchvision

        changes = {"image_size": size[0]} if model.startswith("vit") else {}
        return getattr(torchvision.models, _known(TORCHVISION, model, library))(**changes).eval()
    return transformers_model(model, size)


def transformers_model(model: str, size: list[int]) -> torch.nn.Module:
    from reference_models import import_timm

    import_timm()  # where torchvision is installed, transformers imports it, too
    import transformers

    if model.startswith("vit"):
        widths = {} if model == "vit_b16" else {"hidden_size": 192, "num_attention_heads": 3}
        widths |= {} if model == "vit_b16" else {"intermediate_size": 768}
        config = transformers.ViTConfig(num_labels=1000, image_size=size[0], **widths)
        return transformers.ViTForImageClassification(config).eval()
    if model == "swin_t":
        config = transformers.SwinConfig(num_labels=1000, image_size=size[0])
        return transformers.SwinForImageClassification(config).eval()
    if not model.startswith("detr"):
        raise ValueError(f"transformers has no {model} for images")
    from vitrail.models import MODELS

    ours: Any = MODELS[model]
    backbone = transformers.ResNetConfig(depths=list(ours.backbone_depths), out_features=["stage4"])
    config = transformers.DetrConfig(
        use_timm_backbone=False, backbone_config=backbone, num_labels=ours.num_classes
    )
    module = transformers.DetrForObjectDetection(config).eval()
    with torch.no_grad():
        for name, tensor in module.named_buffers():
            if name.endswith("normalization.weight"):
                tensor.fill_(0.7)  # as trained networks have them; with ones, random layers would explode
    return module


class OnlyTensors(torch.nn.Module):
    """A model whose answer is tensors, which is what exporters take."""

    def __init__(self, module: torch.nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, images: torch.Tensor) -> Any:
        answer = self.module(images)
        if isinstance(answer, torch.Tensor):
            return answer
        boxes = getattr(answer, "pred_boxes", None)
        return answer.logits if boxes is None else (answer.logits, boxes)


def exported_reference(model: str, size: list[int]) -> torch.nn.Module:
    library = "transformers" if model.startswith("detr") else "timm"
    return OnlyTensors(reference_model(library, model, size)).eval()


def plain_onnx(model: str, precision: str, size: list[int]) -> Callable[[torch.Tensor], Any]:
    """Export the reference model as PyTorch's documentation does, and run it with the usual options."""
    import onnxruntime

    if precision == "bfloat16":
        raise ValueError("ONNX Runtime has no bfloat16 on CPUs")
    folder = tempfile.TemporaryDirectory()
    path = Path(folder.name) / "model.onnx"
    module, example = exported_reference(model, size), torch.randn(2, 3, *size)
    shapes = ({0: torch.export.Dim("batch", min=1)},)
    torch.onnx.export(module, (example,), path, dynamo=True, dynamic_shapes=shapes, verbose=False)
    if precision == "int8":
        path = quantised_onnx(path, size)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    name = session.get_inputs()[0].name

    def forward(images: torch.Tensor, folder: Any = folder) -> Any:
        return [torch.from_numpy(each) for each in session.run(None, {name: images.numpy()})]

    return forward


def quantised_onnx(path: Path, size: list[int]) -> Path:
    import onnx
    from onnxruntime.quantization import CalibrationDataReader, QuantType, quantize_static

    class Reader(CalibrationDataReader):
        def __init__(self, name: str) -> None:
            self.batches = iter([{name: images.numpy()} for images in random_batches(size)])

        def get_next(self) -> Any:
            return next(self.batches, None)

    graph = onnx.load(path)
    del graph.graph.value_info[:]
    output = path.with_name("int8.onnx")
    quantize_static(
        graph,
        str(output),
        Reader(graph.graph.input[0].name),
        per_channel=True,
        activation_type=QuantType.QUInt8,
        weight_type=QuantType.QInt8,
        op_types_to_quantize=["MatMul", "Gemm"],
    )
    return output


def plain_openvino(model: str, precision: str, size: list[int]) -> Callable[[torch.Tensor], Any]:
    """Convert the reference model as OpenVINO's documentation does, and run it for latency."""
    import openvino

    module, example = exported_reference(model, size), torch.randn(2, 3, *size)
    converted = openvino.convert_model(module, example_input=example, input=[-1, 3, *size])
    if precision == "int8":
        import nncf

        batches = [images.numpy() for images in random_batches(size)]
        converted = nncf.quantize(
            converted, nncf.Dataset(batches), model_type=nncf.ModelType.TRANSFORMER, subset_size=len(batches)
        )
    options = {
        "PERFORMANCE_HINT": "LATENCY",
        "INFERENCE_NUM_THREADS": torch.get_num_threads(),
        "INFERENCE_PRECISION_HINT": "bf16" if precision == "bfloat16" else "f32",
    }
    compiled = openvino.compile_model(converted, "CPU", options)

    def forward(images: torch.Tensor) -> Any:
        found = compiled([images.numpy()])
        return [torch.from_numpy(found[port].copy()) for port in compiled.outputs]

    return forward


def random_batches(size: list[int]) -> list[torch.Tensor]:
    """Return images that ranges of int8 are taken from."""
    generator = torch.Generator().manual_seed(SEED)
    return [torch.randn(2, 3, *size, generator=generator) for _ in range(CALIBRATION_BATCHES)]


def _known(names: dict[str, str], model: str, library: str) -> str:
    if model not in names:
        raise ValueError(f"{library} has no {model} for images")
    return names[model]
