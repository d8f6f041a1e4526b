"""Benchmarks by name and by folder, each from a miniature that is laid out like the real thing."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from making.benchmark_folders import (
    CIFAR_NAMES,
    WNIDS,
    cifar_pixels,
    colour_image,
    python2_batch,
    python2_names,
    write_cifar10,
    write_flowers,
    write_imagenet,
    write_pets,
    write_real,
    write_vtab_task,
)
from making.image_folders import encode
from vitrail.core.errors import DataError
from vitrail.data.dataset import ImageSplit
from vitrail.data.formats import RawDataset
from vitrail.tasks.classification.benchmark_reading import find_gaps, read_benchmark, read_real_labels
from vitrail.tasks.classification.benchmarks import BENCHMARKS, GROUPS, benchmark_of
from vitrail.tasks.classification.formats.imagenet import validation_number
from vitrail.tasks.classification.opening import open_dataset, open_to_score
from vitrail.tasks.registry import recognise


@pytest.fixture(autouse=True)
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder that VITRAIL_DATA names."""
    monkeypatch.setenv("VITRAIL_DATA", str(tmp_path))
    return tmp_path


def test_the_table_is_that_of_the_papers() -> None:
    assert {"imagenet", "imagenet-real", "cifar10", "cifar100", "oxford-pets", "flowers102"} < set(BENCHMARKS)
    tasks = [benchmark for benchmark in BENCHMARKS.values() if benchmark.group]
    assert len(tasks) == 19
    assert [sum(task.group == group for task in tasks) for group in GROUPS] == [7, 4, 8]
    assert all(task.counts[:2] == (800, 200) for task in tasks)
    assert benchmark_of("Oxford-Pets:/somewhere") is BENCHMARKS["oxford-pets"]
    assert benchmark_of("photos/oxford-pets") is None
    assert all(recognise(name) == "classification" for name in BENCHMARKS)


@pytest.mark.parametrize("binary", [False, True])
def test_cifar_is_read_as_it_is_published(data: Path, binary: bool) -> None:
    write_cifar10(data / "cifar-10-batches-py", binary=binary)
    raw = read_benchmark("cifar10")
    assert raw.class_names == tuple(CIFAR_NAMES)
    assert raw.splits["train"].labels.tolist() == [i % 10 for i in range(20)]
    assert raw.splits["test"].labels.tolist() == [3, 9, 0]
    expected = cifar_pixels([3, 9, 0], 5)[1].reshape(3, 32, 32).transpose(1, 2, 0)
    np.testing.assert_array_equal(raw.splits["test"].images[1], expected)
    assert "20 of 50,000 images of train" in raw.findings[-1].message
    assert len(open_dataset(data / "cifar-10-batches-py").test) == 3  # the folder is enough


def test_what_is_missing_to_learn_from_spoils_no_score(data: Path) -> None:
    imagenet = benchmark_of("imagenet")
    assert imagenet is not None
    images = ImageSplit([Path("x")] * 50_000, np.arange(50_000) % 1000, [str(i) for i in range(50_000)])

    def found(**splits: ImageSplit) -> dict[str, str]:
        raw = RawDataset(class_names=tuple(WNIDS), splits=splits)
        return {finding.check: finding.message for finding in find_gaps(imagenet, raw)}

    nothing = images.take([])
    assert list(found(train=nothing, validation=images)) == ["no-training-images"]
    some = found(train=images, validation=images)
    assert some == {
        "incomplete-training": "ImageNet (ILSVRC 2012) lacks training images: "
        "50,000 of 1,281,167 images of train"
    }
    assert (
        "49 of 50,000 images of validation"
        in found(validation=images.take(range(49)))["incomplete-benchmark"]
    )


def test_cifar_100_has_its_fine_labels(data: Path) -> None:
    names = [f"thing {number}" for number in range(100)]
    root = data / "cifar-100-python"
    root.mkdir()
    (root / "meta").write_bytes(python2_names("fine_label_names", names))
    for stem, labels in (("train", [7, 99, 0, 7]), ("test", [1])):
        (root / stem).write_bytes(python2_batch(cifar_pixels(labels, 0), labels, label_key="fine_labels"))
    raw = read_benchmark("cifar100")
    assert raw.splits["train"].labels.tolist() == [7, 99, 0, 7]
    assert raw.class_names[99] == "thing 99"


def test_cifar_is_read_from_the_hubs_tables(data: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    (data / "cifar10").mkdir()
    for name, labels in (("train", [i % 10 for i in range(20)]), ("test", [3, 9])):
        rows = cifar_pixels(labels, 0).reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
        files = [{"bytes": encode(pixels), "path": None} for pixels in rows]
        pq.write_table(pa.table({"img": files, "label": labels}), data / "cifar10" / f"{name}.parquet")
    raw = read_benchmark("cifar10")
    assert raw.splits["test"].labels.tolist() == [3, 9]
    assert len(raw.class_names) == 10


def test_pets_are_divided_by_their_lists(data: Path) -> None:
    write_pets(data / "oxford-iiit-pet")
    dataset = open_dataset("oxford-pets")
    assert dataset.class_names == ("Abyssinian", "american bulldog", "Bombay")
    assert dataset.test.labels.tolist() == [0, 1, 2]
    assert dataset.test.names[1] == "images/american_bulldog_1.jpg"
    assert len(dataset.train) + len(dataset.validation) == 9
    assert any("3 of 37 classes" in finding.message for finding in dataset.findings)
    assert (
        open_dataset(f"oxford-pets:{data / 'oxford-iiit-pet'}").test.fingerprint == dataset.test.fingerprint
    )


def test_flowers_are_divided_by_their_sets(data: Path) -> None:
    write_flowers(data / "flowers102")
    raw = read_benchmark("flowers102")
    assert len(raw.class_names) == 102
    assert raw.splits["train"].labels.tolist() == [0, 1, 101, 0]
    assert raw.splits["validation"].labels.tolist() == [1, 101, 0, 1]
    assert raw.splits["test"].names[0] == "jpg/image_00012.jpg"
    assert raw.splits["test"].labels.tolist() == [101, 1, 0, 101]
    with pytest.raises(DataError, match="102 classes"):
        read_benchmark(f"oxford-pets:{data / 'flowers102'}")


@pytest.mark.parametrize("truth", ["kaggle", "synsets", "devkit"])
def test_imagenets_flat_validation_images_get_their_classes(data: Path, truth: str) -> None:
    write_imagenet(data / "imagenet", {1: 970, 3: 2, 4: 970}, truth=truth)
    dataset = open_to_score("imagenet")

    named = [dataset.class_names[label] for label in dataset.test.labels]
    assert named == [WNIDS[970], WNIDS[2], WNIDS[970]]
    assert [validation_number(name) for name in dataset.test.names] == [1, 3, 4]
    assert len(dataset.train) == 0
    # TensorFlow's list names no class that has no image; the published one has images of all.
    named_by_list = [WNIDS[2], WNIDS[5], WNIDS[970]] if truth == "synsets" else WNIDS
    assert dataset.class_names == tuple(named_by_list)
    with pytest.raises(DataError, match="cannot be trained on") as caught:
        open_dataset("imagenet")
    assert "vitrail evaluate RUN imagenet" in str(caught.value)


def test_classes_of_imagenet_keep_their_numbers_where_others_have_no_image(data: Path) -> None:
    root = write_imagenet(
        data / "imagenet", {number: number - 1 for number in range(1, 1001)}, truth="synsets"
    )
    for file in sorted((root / "val").iterdir())[2:970]:
        file.unlink()
    whole = open_to_score("imagenet")
    assert whole.class_names == tuple(WNIDS)
    assert whole.test.labels.tolist() == [0, 1, *range(970, 1000)]

    for file in (root / "val").iterdir():  # the same images, moved into folders by class as many do
        place = root / "val" / WNIDS[(validation_number(file.name) or 0) - 1]
        place.mkdir()
        file.rename(place / file.name)
    moved = open_to_score("imagenet")
    assert moved.class_names == whole.class_names
    assert moved.test.labels.tolist() == whole.test.labels.tolist()


def test_imagenets_train_folders_stand_beside_flat_validation_images(data: Path) -> None:
    root = write_imagenet(data / "imagenet", {1: 4, 2: 8}, truth="synsets")
    for label in (4, 8, 8):
        colour_image(root / "train" / WNIDS[label] / f"{WNIDS[label]}_{label}.JPEG", label, label)
    dataset = open_dataset("imagenet")
    assert dataset.class_names == (WNIDS[4], WNIDS[8])
    assert len(dataset.train) + len(dataset.validation) == 2
    (root / "imagenet_2012_validation_synset_labels.txt").unlink()
    with pytest.raises(DataError, match=r"LOC_val_solution\.csv"):
        read_benchmark("imagenet")


def test_a_task_of_vtab_is_divided_by_its_lists(data: Path) -> None:
    write_vtab_task(data / "vtab-1k" / "oxford_iiit_pet")
    dataset = open_dataset("vtab-oxford-iiit-pet")
    assert [len(split) for split in dataset.splits.values()] == [12, 6, 6]
    assert dataset.class_names == ("0", "1", "2")
    assert dataset.upright
    listed = data / "vtab-1k" / "oxford_iiit_pet" / "test.txt"
    listed.write_text("images/test/000.png cat\n")
    with pytest.raises(DataError, match=r"test.txt cannot be read: line 1 is .*cat"):
        open_dataset("vtab-oxford-iiit-pet")


def test_a_benchmark_that_is_nowhere_says_where_it_was_looked_for(data: Path) -> None:
    with pytest.raises(DataError) as caught:
        read_benchmark("vtab-dtd")
    assert str(data / "vtab-1k" / "dtd") in str(caught.value)
    assert "vtab-dtd:FOLDER" in str(caught.value)
    with pytest.raises(DataError, match="train800"):
        read_benchmark(f"vtab-dtd:{data / 'missing'}")


def test_a_damaged_list_or_label_is_named(data: Path) -> None:
    root = write_pets(data / "oxford-pets")
    listed = root / "annotations" / "test.txt"
    listed.write_text("Abyssinian_1 1 1 1\nBombay_1 1 1 1\n")
    with pytest.raises(DataError, match="line 2"):
        read_benchmark("oxford-pets")
    (write_cifar10(data / "cifar10") / "data_batch_4").unlink()
    with pytest.raises(DataError, match="data_batch_4"):
        read_benchmark("cifar10")


def test_the_labels_of_real_are_found_beside_imagenet(data: Path) -> None:
    with pytest.raises(DataError, match=r"imagenet-real.*real\.json"):
        read_real_labels("imagenet-real")
    write_real(data / "imagenet-real" / "real.json", {2: [3, 999]})
    assert read_real_labels("imagenet-real")[1] == {3, 999}
    write_real(data / "imagenet-real" / "real.json", {2: [1000]})
    with pytest.raises(DataError, match="not classes"):
        read_real_labels("imagenet-real")


def test_the_published_labels_of_real_are_read(shared_data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if not (shared_data / "imagenet-real" / "real.json").is_file():
        pytest.skip("no labels of ReaL in the shared data")
    monkeypatch.setenv("VITRAIL_DATA", str(shared_data))
    labels = read_real_labels("imagenet-real")
    assert sum(bool(entry) for entry in labels) == 46_837  # Beyer et al. 2020, section 3
    assert labels[1] == {795, 970}
