"""Export of translators to CTranslate2, verified by translating the same sentences with both engines."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from vitrail.core.durable import atomic_folder
from vitrail.core.errors import CheckpointError, ConfigError
from vitrail.engines.loading import CTRANSLATE2_FILE
from vitrail.models.checkpoint import LoadedModel
from vitrail.tasks.translation.ctranslate2.folder import (
    TRANSLATOR_FILE,
    describe,
    import_engine,
)
from vitrail.tasks.translation.ctranslate2.proof import (
    EXACT,
    TOLERANCES,
    Proof,
    check,
    compare,
    rows_to_compare,
)
from vitrail.tasks.translation.ctranslate2.spec import build_spec, check_expressible
from vitrail.tasks.translation.predictor import Translator

README_FILE = "README.md"


def export_ctranslate2(
    loaded: LoadedModel,
    folder: Path,
    *,
    quantization: str | None = None,
    sentences: Sequence[str] = (),
) -> Proof:
    """Write a translator as a folder for ``ctranslate2.Translator``, and verify it.

    Both translate the same sentences, greedily and with a beam of 5. In float32, token log-probabilities and
    scores may differ by at most 1e-3, and at most one translation in twenty may differ, as where two tokens
    tie up to rounding. With quantized weights, the mean difference is bounded (``TOLERANCES``). A folder that
    fails is not kept.

    Args:
        folder: created; a former export of ours is replaced as a whole.
        quantization: of the weights: ``int8``, ``int8_float32``, ``int8_float16``, ``int8_bfloat16``,
            ``int16``, ``float16`` or ``bfloat16``; None keeps float32.
        sentences: raw text to compare with; by default random subwords.

    Returns:
        : The result of the comparison.

    Raises:
        ConfigError: the engine is not installed, cannot run the model, or has no such quantization.
        CheckpointError: the exported model computes something else, the folder holds something else, or it
            cannot be written.
    """
    kind = EXACT if quantization is None else quantization
    if kind not in TOLERANCES:
        raise ConfigError(
            f"CTranslate2 has no quantization {kind!r}",
            expected=f"one of {', '.join(TOLERANCES)}",
            remedy="Leave it out to keep the weights as they are",
        )
    ctranslate2 = import_engine()
    _check_replaceable(folder)
    check_expressible(loaded.model)
    translator = Translator(loaded, device="cpu")
    rows = rows_to_compare(translator, sentences)
    with atomic_folder(folder) as staged:
        spec = build_spec(loaded.model, translator.vocabulary)
        spec.validate()
        spec.optimize(quantization=quantization)
        spec.save(str(staged))
        for name, content in _further_files(loaded, translator).items():
            (staged / name).write_bytes(content)
        engine = ctranslate2.Translator(str(staged), device="cpu", compute_type="default")
        proof = compare(translator, engine, rows, quantization=kind)
        check(proof)
    return proof


def _further_files(loaded: LoadedModel, translator: Translator) -> dict[str, bytes]:
    """Return the vocabularies and settings by file name."""
    source, target = translator.languages
    names = sorted(name for name in loaded.files if not name.endswith(".json"))
    read, written = names[0], names[-1]  # source before target; one name if the vocabulary is shared
    lines = [
        f"# {source} to {target}, for CTranslate2",
        "",
        "`vitrail translate FOLDER letter.txt` translates with it. Without vitrail, after `pip install",
        "ctranslate2 sentencepiece`:",
        "",
        "    import ctranslate2, sentencepiece",
        "",
        *(
            f"    {name} = sentencepiece.SentencePieceProcessor(model_file={file!r})"
            for name, file in (("source", read), ("target", written))
        ),
        "    engine = ctranslate2.Translator('.')",
        "    found = engine.translate_batch([source.encode('...', out_type=str)], beam_size=5)",
        "    print(target.decode(found[0].hypotheses[0]))",
        "",
    ]
    if translator.preprocessing.lower_case:
        lines += ["Make the text lower-case first.", ""]
    return {**loaded.files, TRANSLATOR_FILE: describe(loaded), README_FILE: "\n".join(lines).encode()}


def _check_replaceable(folder: Path) -> None:
    """Refuse to replace anything but an export, as all of the folder is removed.

    Raises:
        CheckpointError: the folder holds something else.
    """
    is_free = not folder.exists() or (folder.is_dir() and not any(folder.iterdir()))
    is_export = (folder / CTRANSLATE2_FILE).is_file() and any(folder.glob("*_vocabulary.json"))
    if not is_free and not is_export:
        raise CheckpointError(
            f"{folder} exists, and is no export",
            expected="a folder that does not exist yet, is empty, or holds a model of CTranslate2",
            remedy="Name another folder, such as models/NAME-ctranslate2",
        )
