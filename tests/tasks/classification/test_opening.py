"""Every format is recognised and read, and everything else gets one clear error."""

from __future__ import annotations

import gzip
import json
import struct
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from making.image_folders import encode, noise
from vitrail.core.errors import DataError
from vitrail.data.dataset import ImageDataset
from vitrail.data.images import read_image
from vitrail.data.settings import DataSettings
from vitrail.tasks.classification import opening
from vitrail.tasks.classification.formats import FORMATS
from vitrail.tasks.classification.opening import open_dataset
from vitrail.tasks.classification.settings import ImageDataSettings

COLOURS = {"blue": (0, 0, 250), "green": (0, 250, 0), "red": (250, 0, 0)}


def picture(name: str, size: int = 5) -> Image.Image:
    return Image.new("RGB", (size, size), COLOURS[name])


def labels_by_colour(dataset: ImageDataset) -> None:
    """Assert that every image of every split has the label that its colour tells."""
    for split in dataset.splits.values():
        for image, label in zip(split.images, split.labels, strict=True):
            assert read_image(image).getpixel((0, 0)) == COLOURS[dataset.class_names[label]]


def write_files(folder: Path, per_class: int = 5) -> list[tuple[str, str]]:
    """Write images side by side; return file names and classes."""
    folder.mkdir(parents=True, exist_ok=True)
    rows = []
    for name in COLOURS:
        for index in range(per_class):
            picture(name, 5 + index).save(folder / f"{name}{index}.png")
            rows.append((f"{name}{index}.png", name))
    return rows


def sizes(dataset: ImageDataset) -> tuple[int, int, int]:
    return len(dataset.train), len(dataset.validation), len(dataset.test)


SETTINGS = DataSettings(source="x", test_fraction=0.2, validation_fraction=0.25)


def test_class_folders_are_divided_by_class_and_seed(image_folder: Path) -> None:
    dataset, same = (open_dataset(image_folder, settings=SETTINGS) for _ in range(2))
    other = open_dataset(image_folder, settings=SETTINGS.with_changes({"split_seed": 1}))
    assert dataset.class_names == ("blue", "green", "red")
    assert dataset.format == "class folders"
    assert sizes(dataset) == (9, 3, 3)
    for split in dataset.splits.values():
        assert len(set(split.count_per_class(3).tolist())) == 1
        for name, label in zip(split.names, split.labels, strict=True):
            assert name.split("/")[0] == dataset.class_names[label]
    assert "seed 0" in dataset.test_origin
    assert not dataset.upright
    assert dataset.test.names == same.test.names != other.test.names
    assert dataset.fingerprint == same.fingerprint


def test_the_training_split_of_a_divided_folder_gives_the_validation(divided_folder: Path) -> None:
    dataset = open_dataset(divided_folder, settings=SETTINGS)
    assert dataset.format == "train and test folders"
    assert sizes(dataset) == (11, 4, 6)
    assert all(name.startswith("test/") for name in dataset.test.names)
    assert dataset.test_origin == "from the source"


def test_validation_beside_train_and_test_is_used_as_such(divided_folder: Path) -> None:
    (divided_folder / "test").rename(divided_folder / "valid")
    write_classes(divided_folder / "Test")
    dataset = open_dataset(divided_folder)
    assert sizes(dataset) == (15, 6, 6)
    assert dataset.validation_origin == "from the source"


@pytest.mark.parametrize("name", ["val", "valid", "validation"])
def test_validation_beside_train_alone_is_the_test(divided_folder: Path, name: str) -> None:
    (divided_folder / "test").rename(divided_folder / name)
    dataset = open_dataset(divided_folder, settings=SETTINGS)
    assert sizes(dataset) == (11, 4, 6)
    assert dataset.test_origin == "the source's validation split"
    assert [finding.check for finding in dataset.findings] == ["validation-as-test"]


def write_classes(root: Path, names: Iterable[str] = COLOURS) -> None:
    for name in names:
        (root / name).mkdir(parents=True)
        for index in range(2):
            picture(name if name in COLOURS else "red", 5 + index).save(root / name / f"{index}.png")


def test_an_unpacked_archive_is_entered(tmp_path: Path) -> None:
    write_classes(tmp_path / "outer" / "inner")
    (tmp_path / "__MACOSX").mkdir()
    assert open_dataset(tmp_path).class_names == ("blue", "green", "red")


def test_links_nested_hidden_and_stray_files_are_distinguished(tmp_path: Path) -> None:
    write_classes(tmp_path / "kept")
    data = tmp_path / "data"
    write_classes(data)
    (data / "green" / "nested").mkdir()
    picture("green").save(data / "green" / "nested" / "deep.PNG")
    (data / "green" / ".hidden.png").write_bytes(b"x")
    (data / "green" / "notes.txt").write_text("x")
    (data / "green" / "loop").symlink_to(data / "green", target_is_directory=True)
    (data / "blue" / "link.png").symlink_to(tmp_path / "kept" / "blue" / "1.png")
    picture("red").save(data / "stray.png")
    (data / "empty").mkdir()
    dataset = open_dataset(data)
    names = [name for split in dataset.splits.values() for name in split.names]
    assert len(names) == 8
    assert {"green/nested/deep.PNG", "blue/link.png"} <= set(names)
    labels_by_colour(dataset)
    found = {finding.check: finding for finding in dataset.findings}
    assert found["stray-images"].items == ("stray.png",)
    assert found["empty-class"].items == ("empty",)
    assert found["ignored-files"].count == 1


@pytest.mark.parametrize(
    ("classes", "upright"),
    [(["0", "2", "10"], False), (["7", "a", "b"], True), (["a", "b", "seven"], False)],
)
def test_classes_are_in_order_of_numbers_and_upright_if_of_one_character(
    tmp_path: Path, classes: list[str], upright: bool
) -> None:
    write_classes(tmp_path, classes)
    dataset = open_dataset(tmp_path)
    assert dataset.class_names == tuple(classes)
    assert dataset.upright is upright


def write_csv(path: Path, rows: list[tuple[str, str]], header: str = "file_name,label") -> None:
    separator = "\t" if path.suffix == ".tsv" else ";" if ";" in header else ","
    lines = [header.replace(",", separator), *(separator.join(row) for row in rows)]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8-sig")


def write_json_lines(path: Path, rows: list[tuple[str, str]]) -> None:
    path.write_text("".join(json.dumps({"img": name, "category": label}) + "\n" for name, label in rows))


def write_parquet(path: Path, rows: list[tuple[str, str]]) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(
        pa.table({"path": [name for name, _ in rows], "target": [label for _, label in rows]}), path
    )


@pytest.mark.parametrize(
    ("name", "write"),
    [
        ("rows.csv", write_csv),
        ("rows.tsv", write_csv),
        ("rows.csv", lambda path, rows: write_csv(path, rows, "Image;Class")),
        ("rows.jsonl", write_json_lines),
        ("rows.parquet", write_parquet),
    ],
    ids=["csv", "tsv", "semicolons", "jsonl", "parquet"],
)
@pytest.mark.parametrize("as_folder", [False, True])
def test_tables_name_images_relative_to_themselves(
    tmp_path: Path, name: str, write: Callable[[Path, list[tuple[str, str]]], None], as_folder: bool
) -> None:
    rows = [(f"pictures/{file}", label) for file, label in write_files(tmp_path / "pictures")]
    write(tmp_path / name, rows)
    dataset = open_dataset(tmp_path if as_folder else tmp_path / name, settings=SETTINGS)
    assert dataset.format == "table"
    assert dataset.class_names == ("blue", "green", "red")
    assert sizes(dataset) == (9, 3, 3)
    labels_by_colour(dataset)


def test_a_table_names_files_whose_accents_the_disk_takes_apart(tmp_path: Path) -> None:
    rows = write_files(tmp_path)
    for name, _ in rows:
        (tmp_path / name).rename(tmp_path / f"e\u0301{name}")
    write_csv(tmp_path / "rows.csv", [(f"\u00e9{name}", label) for name, label in rows])
    dataset = open_dataset(tmp_path / "rows.csv", settings=SETTINGS)
    assert all(image.is_file() for image in dataset.train.images)
    labels_by_colour(dataset)


def test_a_folder_of_tables_is_divided_by_their_names(tmp_path: Path) -> None:
    rows = write_files(tmp_path)
    write_csv(tmp_path / "train.csv", rows[::2])
    write_csv(tmp_path / "test.csv", rows[1::2])
    dataset = open_dataset(tmp_path, settings=SETTINGS)
    assert sizes(dataset) == (5, 3, 7)
    labels_by_colour(dataset)


def test_a_column_of_splits_divides_one_table_and_unknown_ones_are_refused(tmp_path: Path) -> None:
    rows = [f"{name},{label},Train" for name, label in write_files(tmp_path)]
    table = ["image,label,split", rows[0], ",blue,train", *rows[1:4], "red0.png,red,tset", *rows[4:]]
    (tmp_path / "all.csv").write_text("\n".join(table))
    with pytest.raises(DataError, match=r"row 5 of .*all.csv belongs to a split named 'tset'"):
        open_dataset(tmp_path / "all.csv")
    (tmp_path / "all.csv").write_text("\n".join(table).replace("tset", "test"))
    dataset = open_dataset(tmp_path / "all.csv", settings=SETTINGS)
    assert dataset.test.names == ("red0.png",)
    assert len(dataset.train) + len(dataset.validation) == 15
    labels_by_colour(dataset)


def test_incomplete_rows_are_left_out_and_repeated_files_keep_distinct_names(tmp_path: Path) -> None:
    rows = write_files(tmp_path)
    write_csv(tmp_path / "rows.csv", [*rows, rows[0], ("", "red"), ("red0.png", "")])
    dataset = open_dataset(tmp_path / "rows.csv")
    names = [name for split in dataset.splits.values() for name in split.names]
    assert len(names) == len(set(names)) == 16
    assert "blue0.png (2)" in names
    assert [(finding.check, finding.count) for finding in dataset.findings] == [("incomplete-rows", 2)]


@pytest.mark.parametrize("as_struct", [True, False])
def test_parquet_of_bytes_takes_class_names_from_its_metadata(tmp_path: Path, as_struct: bool) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    order = ["red", "blue", "green"]
    labels = [index % 3 for index in range(12)]
    encoded: list[Any] = [encode(picture(order[label])) for label in labels]
    if as_struct:
        encoded = [{"bytes": value, "path": None} for value in encoded]
    described = {
        "info": {"features": {"image": {"_type": "Image"}, "label": {"names": order, "_type": "ClassLabel"}}}
    }
    table = pa.table({"image": encoded, "label": labels, "boxes": [[[1.0]]] * 12})
    table = table.replace_schema_metadata({b"huggingface": json.dumps(described).encode()})
    pq.write_table(table, tmp_path / "train-00000-of-00002.parquet")
    pq.write_table(table, tmp_path / "train-00001-of-00002.parquet")
    pq.write_table(table, tmp_path / "test.parquet")
    dataset = open_dataset(tmp_path)
    assert dataset.class_names == tuple(order)
    assert len(dataset.train) + len(dataset.validation) == 24
    assert len(dataset.test) == 12
    labels_by_colour(dataset)


def write_idx(path: Path, values: np.ndarray) -> None:
    header = struct.pack(f">BBBB{values.ndim}I", 0, 0, 8, values.ndim, *values.shape)
    everything = header + values.astype(np.uint8).tobytes()
    path.write_bytes(gzip.compress(everything) if path.suffix == ".gz" else everything)


def write_idx_folder(folder: Path, suffix: str = ".gz", num_classes: int = 10) -> np.ndarray:
    folder.mkdir(parents=True, exist_ok=True)
    generator = np.random.default_rng(0)
    images = generator.integers(0, 256, size=(40, 5, 7))
    for stem, part in (("train", slice(0, 30)), ("t10k", slice(30, 40))):
        write_idx(folder / f"{stem}-images-idx3-ubyte{suffix}", images[part])
        write_idx(folder / f"{stem}-labels-idx1-ubyte{suffix}", np.arange(40)[part] % num_classes)
    return images


@pytest.mark.parametrize("suffix", [".gz", ""])
def test_idx_files_are_read_exactly(tmp_path: Path, suffix: str) -> None:
    images = write_idx_folder(tmp_path / "mnist", suffix)
    dataset = open_dataset(tmp_path / "mnist")
    assert dataset.format == "IDX files"
    assert dataset.class_names == tuple("0123456789")
    assert dataset.upright
    assert np.array_equal(np.asarray(dataset.test.images), images[30:])
    assert dataset.test.labels.tolist() == list(range(10))


def test_a_truncated_idx_file_is_refused(tmp_path: Path) -> None:
    write_idx_folder(tmp_path, "")
    path = tmp_path / "train-images-idx3-ubyte"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(
        DataError, match=r"train-images-idx3-ubyte cannot be read: its header announces 1,050"
    ):
        open_dataset(tmp_path)
    path.write_bytes(b"text")
    with pytest.raises(DataError, match=r"starts with the bytes 74 65"):
        open_dataset(tmp_path)
    (tmp_path / "train-labels-idx1-ubyte").unlink()
    with pytest.raises(DataError, match="no file of labels"):
        open_dataset(tmp_path)
    write_idx_folder(tmp_path / "packed")
    path = tmp_path / "packed" / "train-images-idx3-ubyte.gz"
    path.write_bytes(path.read_bytes()[:200])
    with pytest.raises(DataError, match=r"train-images-idx3-ubyte.gz cannot be read"):
        open_dataset(tmp_path / "packed")


@pytest.mark.parametrize(
    ("name", "expected", "shape"),
    [("digits", (1366, 72, 359), (8, 8)), ("mnist-5k", (3800, 200, 1000), (28, 28))],
)
def test_builtin_digits_are_divided_by_class(
    name: str, expected: tuple[int, int, int], shape: tuple[int, int]
) -> None:
    dataset = open_dataset(name)
    assert sizes(dataset) == expected
    assert dataset.train.images[0].shape == shape
    assert dataset.train.images.dtype == np.uint8
    assert max(image.max() for image in dataset.train.images[:50]) == 255
    assert dataset.upright
    per_class = dataset.test.count_per_class(10)
    assert per_class.max() - per_class.min() <= 3  # scikit-learn's digits are only nearly balanced


def test_the_first_builtin_digit_is_that_of_scikit_learn() -> None:
    raw = opening.read_packaged("digits").splits["train"]
    # first row of load_digits().images[0], in 17 levels
    assert (np.asarray(raw.images[0][0]) * (16 / 255)).round().tolist() == [0, 0, 5, 13, 9, 1, 0, 0]
    assert raw.labels[:10].tolist() == list(range(10))


def test_fashion_mnist_is_found_by_the_variable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_idx_folder(tmp_path / "fashion-mnist")
    monkeypatch.setenv("VITRAIL_DATA", str(tmp_path))
    dataset = open_dataset("fashion-mnist")
    assert dataset.class_names[0] == "T-shirt/top"
    assert sizes(dataset)[2] == 10
    assert not dataset.upright
    monkeypatch.setenv("VITRAIL_DATA", str(tmp_path / "elsewhere"))
    monkeypatch.setattr(opening, "FASHION_FOLDER", tmp_path / "nowhere")
    with pytest.raises(DataError, match="apt install dataset-fashion-mnist"):
        open_dataset("fashion-mnist")


def test_a_local_folder_comes_before_a_builtin_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_classes(tmp_path / "digits")
    monkeypatch.chdir(tmp_path)
    assert open_dataset("digits").format == "class folders"
    assert open_dataset("builtin:digits").format == "built-in"


@pytest.fixture
def hub_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    import datasets.config

    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_OFFLINE", True, raising=False)
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True, raising=False)
    return tmp_path


NAMES = ("blue", "red")


def as_published(labels: dict[str, list[Any]], names: Sequence[str] = NAMES, *, named: bool = True) -> Any:
    """Return splits as the hub has them: images of their class's colour, and labels, numbers where named."""
    import datasets

    def rows(values: list[Any]) -> dict[str, list[Any]]:
        colours = [value if isinstance(value, str) else names[value or 0] for value in values]
        return {
            "a_photo": [
                {"bytes": encode(picture(name, 5 + i)), "path": None} for i, name in enumerate(colours)
            ],
            "label": values,
        }

    label = datasets.ClassLabel(names=list(names)) if named else datasets.Value("string")
    features = datasets.Features({"label": label, "a_photo": datasets.Image()})
    return datasets.DatasetDict(
        {
            split: datasets.Dataset.from_dict(rows(values), features=features)
            for split, values in labels.items()
        }
    )


def test_a_hugging_face_data_set_is_read_without_decoding(hub_cache: Path) -> None:
    names, labels = ("red", "blue", "green"), [0, 1, 2] * 4
    published = as_published({"train": labels, "other": labels, "test": labels}, names)
    published.save_to_disk(hub_cache / "saved")
    dataset = open_dataset(hub_cache / "saved")
    assert dataset.format == "Hugging Face data set"
    assert dataset.class_names == names
    assert len(dataset.test) == 12
    assert [(finding.check, finding.items) for finding in dataset.findings] == [("unread-splits", ("other",))]
    labels_by_colour(dataset)


def test_a_name_on_the_hub_without_a_network_is_one_clear_error(hub_cache: Path) -> None:
    with pytest.raises(DataError, match="data set of that name cannot be loaded") as caught:
        open_dataset("nobody/nothing")
    assert "local cache, or a network connection" in caught.value.expected


def test_every_format_describes_itself() -> None:
    assert {"class folders", "table", "IDX files", "Hugging Face data set"} <= set(FORMATS)
    assert all(entry.layout for entry in FORMATS.values())


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("no/such/folder/here", r"there is no path 'no/such/folder/here'"),
        ("missing.csv", r"there is no path 'missing.csv'"),
        ("mnits5k", r"Did you mean 'mnist5k'"),
        ("builtin:digit", r"Did you mean 'digits'"),
        ("fashon-mnist", r"Did you mean 'fashion-mnist'"),
        ("shape", r"mnist5k, shapes.*Did you mean 'shapes'"),
        ("photos_that_are_elsewhere", r"Correct the path; the current folder is"),
        ("", r"there is no path or built-in data set ''"),
    ],
)
def test_what_does_not_exist_is_named(source: str, message: str) -> None:
    with pytest.raises(DataError, match=message):
        open_dataset(source)


RED = encode(picture("red"))
PICTURES = {f"{index}.png": RED for index in range(3)}
UNKNOWN_COLUMNS = {"all.csv": b"picture_url,words\nred0.png,a red one\n"}


@pytest.mark.parametrize(
    ("files", "opened", "message"),
    [
        ({}, ".", r"is empty. Expected a folder for each class"),
        (PICTURES, ".", "holds 3 images but no class folder"),
        ({"a/notes.md": b"x"}, ".", "holds no image, 1 other file"),
        (
            {f"only/{name}": RED for name in PICTURES},
            ".",
            r"has 1 class \('only'\) and .* Expected at least two classes",
        ),
        *(
            (
                {f"{folder}/{name}": RED for name in PICTURES} | UNKNOWN_COLUMNS,
                ".",
                r"images?.*; all.csv has the columns 'picture_url', 'words'",
            )
            for folder in (".", "images")
        ),
        (
            {"a/1.png": RED, "x.csv": b"image,label\n", "y.csv": b"image,label\n"},
            ".",
            r"x.csv has the columns 'image', 'label'; y.csv .*: name one of 2 tables, or call them train",
        ),
        ({"all.json": b'{"pictures": ['}, "all.json", r"all.json cannot be read: Expecting value"),
        (
            {"a.png": RED, "all.csv": b"image,label,split\na.png,cat,test\na.png,dog,test\n"},
            "all.csv",
            r"2 classes \('cat', 'dog'\) and 0 training images.*vitrail evaluate RUN .*all.csv",
        ),
        ({}, "a" * 300, "cannot be opened: File name too long"),
        ({"all.json": b""}, "all.json", r"all.json cannot be read: it is empty"),
        ({"all.json": b"{}"}, "all.json", r"all.json is of no known format"),
        ({"all.json": b'[{"en": "Go."}]'}, "all.json", r"one JSON list of 1 item\. .*jq -c '\.\[\]'"),
        (
            {"good/1.txt": b"fine", "bad/1.txt": b"poor"},
            ".",
            r"holds no image, 2 text files\. .*columns text and label.*train.en and train.de",
        ),
        (
            {"a/b.tsv": b"en\tfr\n", "c.md": b"none"},
            ".",
            r"holds no image, 2 other files; .*folders inside it\. .*such as .*a\.$",
        ),
        ({"a.png": b""}, "a.png", r"a.png is of no known format"),
        *(
            ({name: b"\xfd\xfe\x00broken"}, name, rf"{name} cannot be read as a table")
            for name in ("rows.parquet", "rows.jsonl", "rows.csv")
        ),
        *(
            ({"rows.csv": content}, "rows.csv", message)
            for content, message in (
                (b"picture_of,label\na,b\n", r"no column of images, its columns are 'picture_of', 'label'"),
                (
                    b"Satz,Sprache\nI go.,en\n",
                    r"; of labelled texts, text and label; of sentence pairs, a col",
                ),
                (b"image,meaning\na,b\n", r"no column of labels, its columns are 'image', 'meaning'"),
                (b"image,label\n1.png,a\n2.png,b\n", r"names 2 image files and none of them exists"),
                (b"label,image\n1.png,a\n2.png,b\n", r"Exchange .*: 'label' holds names of images"),
                ("image,label\n".encode("utf-16-le"), r"is encoded as UTF-16\..*iconv -f UTF-16LE -t UTF-8"),
                ("image,label\n".encode("utf-16-be"), r"is encoded as UTF-16\..*iconv -f UTF-16BE -t UTF-8"),
                (b"image,label," + b"x" * 200_000, r"holds no row"),
                (b"image,label\n", r"holds no row"),
                (b"", r"holds no row"),
                (b"image,label\na,b,c\n", r"line 2 has 3 cells and the header 2"),
            )
        ),
    ],
)
def test_what_cannot_be_used_says_why(
    tmp_path: Path, files: dict[str, bytes], opened: str, message: str
) -> None:
    for name, body in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(body)
    with pytest.raises(DataError, match=message):
        open_dataset(tmp_path / opened)


def test_shared_data_has_its_official_splits(shared_data: Path) -> None:
    dataset = open_dataset(shared_data / "fashion-mnist")
    assert (len(dataset.train) + len(dataset.validation), len(dataset.test)) == (60_000, 10_000)
    assert dataset.class_names[9] == "Ankle boot"
    assert len(dataset.validation) == 1000


@pytest.mark.parametrize(
    ("known", "unknown", "named"), [([0, 1], -1, True), ([0, 1], None, True), ([*NAMES], None, False)]
)
def test_a_test_split_without_labels_is_replaced_by_the_validation(
    tmp_path: Path, known: list[Any], unknown: Any, named: bool
) -> None:
    labels = {"train": known * 6, "validation": [*known, unknown], "test": [unknown] * 3}
    as_published(labels, named=named).save_to_disk(tmp_path / "saved")
    dataset = open_dataset(tmp_path / "saved")
    assert dataset.class_names == NAMES
    assert dataset.test.labels.tolist() == [0, 1]
    assert dataset.test.names == ("validation#0", "validation#1")
    found = {finding.check: finding for finding in dataset.findings}
    assert found["unlabelled-splits"].items == ("test",)
    assert "validation-as-test" in found
    as_published({"train": [unknown] * 3, "test": known}, named=named).save_to_disk(tmp_path / "other")
    with pytest.raises(DataError, match="0 training images"):
        open_dataset(tmp_path / "other")


def test_tables_of_the_hub_are_read_the_same_way(tmp_path: Path) -> None:
    for split, part in as_published({"train": [0, 1] * 6, "test": [-1] * 3}).items():
        part.rename_column("a_photo", "image").to_parquet(tmp_path / f"{split}.parquet")
    dataset = open_dataset(tmp_path)

    assert len(dataset.test)
    assert {"unlabelled-splits", "incomplete-rows"} <= {finding.check for finding in dataset.findings}


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        (["cat", "cat|dog", "dog", "cat"], r"several classes of one image, such as 'cat\|dog'.*Keep the one"),
        (
            [f"{0.137 * index:.3f}" for index in range(1, 13)],
            r"12 different numbers, such as 0.137.*low and high",
        ),
    ],
)
def test_labels_that_are_no_classes_are_asked_about(tmp_path: Path, labels: list[str], message: str) -> None:
    rows = []
    for index, label in enumerate(labels):
        (tmp_path / f"{index}.png").write_bytes(encode(noise((6, 6), seed=index)))
        rows.append(f"{index}.png,{label}")
    (tmp_path / "all.csv").write_text("\n".join(["image,label", *rows]))
    with pytest.raises(DataError, match=message):
        open_dataset(tmp_path / "all.csv")


@pytest.mark.parametrize(
    ("name", "command"), [("pets.zip", "unzip .*pets.zip -d .*pets"), ("pets.tar.gz", "tar xf")]
)
def test_an_archive_is_answered_with_unpacking(tmp_path: Path, name: str, command: str) -> None:
    (tmp_path / name).write_bytes(b"PK")
    with pytest.raises(DataError, match=rf"is an archive.* Unpack it first, such as by '{command}"):
        open_dataset(tmp_path / name)


def test_boxes_are_not_opened_as_class_folders(tmp_path: Path) -> None:
    for folder in ("train2017", "val2017", "annotations"):
        (tmp_path / folder).mkdir()
    for folder in ("train2017", "val2017"):
        (tmp_path / folder / "a.png").write_bytes(encode(noise((6, 6))))
        content = {
            "images": [{"id": 1, "file_name": "a.png", "width": 6, "height": 6}],
            "annotations": [{"id": 1, "image_id": 1, "category_id": 1, "bbox": [1, 1, 3, 3], "area": 9}],
            "categories": [{"id": 1, "name": "cell"}],
        }
        (tmp_path / "annotations" / f"instances_{folder}.json").write_text(json.dumps(content))
    with pytest.raises(DataError, match="holds images with boxes"):
        open_dataset(tmp_path)


@pytest.mark.parametrize(
    ("outer", "inner", "classes"),
    [
        (("cam1", "cam2"), ("cat", "dog"), ("cat", "dog")),
        (("site_a", "site_b"), ("cat", "dog"), ("cat", "dog")),
        (("train/cam1", "train/cam2", "test/cam1"), ("cat", "dog"), ("cat", "dog")),
        (("cat", "dog"), ("female", "male"), ("cat", "dog")),
        (("class1", "class2"), ("day", "night"), ("class1", "class2")),
    ],
)
def test_folders_of_the_same_folders_are_told_and_of_cameras_entered(
    tmp_path: Path, outer: Sequence[str], inner: Sequence[str], classes: Sequence[str]
) -> None:
    for folder in outer:
        for name in inner:
            (tmp_path / folder / name).mkdir(parents=True)
            for i in range(3):
                picture("red", 5 + i).save(tmp_path / folder / name / f"{i}.png")

    dataset = open_dataset(tmp_path)

    assert dataset.class_names == classes
    assert sum(map(len, dataset.splits.values())) == 3 * len(outer) * len(inner)
    (finding,) = (each for each in dataset.findings if each.check == "same-folders-inside")
    assert ("the inner ones" if classes == inner else "the outer ones") in finding.message


@pytest.mark.parametrize(
    "cell", ["{}/{}.png", "X:\\data\\{}\\{}.png", "/photos/{}/{}.png", "{}/{}", "{}/{}.PNG"]
)
def test_images_of_a_table_are_found_by_the_ends_of_their_paths(tmp_path: Path, cell: str) -> None:
    write_classes(tmp_path / "images")
    rows = [f"{cell.format(name, index)},{name}\n" for name in COLOURS for index in range(2)]
    (tmp_path / "all.csv").write_text("image,label\n" + "".join(rows))

    dataset = open_dataset(tmp_path / "all.csv")

    labels_by_colour(dataset)
    assert [finding.check for finding in dataset.findings] == ["images-elsewhere"]
    several_of_each_name = "0.png,blue\n1.png,red\n"
    several_names_of_each = "a/blue/0.png,blue\nb/blue/0.png,red\n"
    for rows in (several_of_each_name, several_names_of_each):
        (tmp_path / "all.csv").write_text(f"image,label\n{rows}")
        with pytest.raises(DataError, match="none of them exists"):
            open_dataset(tmp_path / "all.csv")


def test_columns_of_a_table_can_be_named(tmp_path: Path) -> None:
    write_classes(tmp_path)
    files = sorted(file.relative_to(tmp_path).as_posix() for file in tmp_path.rglob("*.png"))
    table = tmp_path / "all.csv"
    table.write_text("Bild,label,Art\n" + "".join(f"{name},x,{name.partition('/')[0]}\n" for name in files))

    def opened(source: Path, **columns: str) -> ImageDataset:
        return open_dataset(
            source, settings=ImageDataSettings(source=str(source), image_size=(8, 8), **columns)
        )

    labels_by_colour(opened(table, image_column="bild", label_column="Art"))
    for source, columns, message in (
        (table, {}, "no column of images.*or name that of images with --image-column"),
        (
            table,
            {"image_column": "Bild", "label_column": "kind"},
            "no column 'kind'. Expected one of 'Bild', ",
        ),
        (tmp_path, {"label_column": "Art"}, "is read as class folders. Expected a table"),
    ):
        with pytest.raises(DataError, match=message):
            opened(source, **columns)


@pytest.mark.parametrize("inner", [("train", "test"), ("",), ("only",), ("cats", "dogs")])
def test_folders_within_a_class_are_parts_of_it(tmp_path: Path, inner: Sequence[str]) -> None:
    for folder in ("cam1", "cam2"):
        for name in inner:
            (tmp_path / folder / name).mkdir(parents=True, exist_ok=True)
            picture("red").save(tmp_path / folder / name / "1.png")
    if inner[0] == "cats":  # one folder too high
        (tmp_path / "cam2/dogs/1.png").unlink()

    dataset = open_dataset(tmp_path)

    assert dataset.class_names == ("cam1", "cam2")
    found = {each.check: each for each in dataset.findings}
    assert "same-folders-inside" not in found
    assert ("folders-inside" in found) == (inner[0] == "cats")
    if inner[0] == "cats":
        assert found["folders-inside"].message.endswith(
            "cam1 holds 2 folders and no image beside them: cats; dogs"
        )
        assert found["folders-inside"].remedy.endswith(f"name the folder {tmp_path / 'cam1'}")


@pytest.mark.parametrize(
    ("names", "is_told"),
    [
        ([("kitchen", "bath")] * 3, True),
        ([("kitchen", "bath"), ("bath", "kitchen"), ("bath", "hall")], False),
        ([("1", "2")] * 3, False),
        ([("photo",)] * 3, False),
        ([("kitchen", "bath")] * 2, False),
    ],
)
def test_the_same_names_in_every_folder_may_be_the_classes(
    tmp_path: Path, names: list[tuple[str, ...]], is_told: bool
) -> None:
    for number, stems in enumerate(names):
        (tmp_path / f"house {number}").mkdir()
        for stem in stems:
            Image.new("RGB", (9, 9)).save(tmp_path / f"house {number}" / f"{stem}.png")
    found = [each for each in open_dataset(tmp_path).findings if each.check == "same-names-inside"]
    assert bool(found) == is_told
    if found:
        assert "(bath; kitchen); the folders are the classes, such as 'house 0'" in found[0].message
