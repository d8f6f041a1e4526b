"""What readers of detection data notice, collected by kind and reported as findings."""

from __future__ import annotations

from collections.abc import Sequence

from vitrail.data.findings import Finding, Severity

KINDS: dict[str, tuple[Severity, str, str]] = {
    "unreadable-annotations": (
        "warning",
        "{count} annotation files cannot be read, and their images are left out",
        "Correct or remove these files: an image without its boxes would teach that nothing is there",
    ),
    "malformed-boxes": (
        "warning",
        "{count} boxes are not a class and four finite numbers, and are left out",
        "Correct or remove them",
    ),
    "malformed-entries": (
        "warning",
        "{count} entries of images or annotations lack what they need, and are left out",
        "Correct or remove them",
    ),
    "repeated-image-ids": (
        "warning",
        "{count} image ids are given to several images; the first image of each is used",
        "Give every image an id of its own",
    ),
    "equal-class-names": (
        "warning",
        "{count} classes have the name of another class; they are told apart by their ids",
        "Rename one of each, or give both one id if they are the same class",
    ),
    "class-count": (
        "warning",
        "the number of classes that is announced is not that of the names; the names are used",
        "Correct nc or names",
    ),
    "missing-splits": (
        "warning",
        "{count} splits that are announced have no images there",
        "Correct the paths, or remove these lines",
    ),
    "missing-images": (
        "warning",
        "{count} rows have no image, or one that is not there, and are left out",
        "Put the images there, or remove the rows",
    ),
    "unnamed-classes": (
        "warning",
        "{count} classes have numbers and no names; the numbers are used as names",
        "Save the data with a ClassLabel feature, or write names instead of numbers",
    ),
    "unlabelled-folders": (
        "warning",
        "{count} folders of images have no label file at all and are not used",
        "Put the labels into labels/ beside images/",
    ),
    "moved-paths": (
        "info",
        "{count} folders of images are not where the file says, and are found beside it",
        "Nothing, if the data was moved together",
    ),
    "listed-without-annotations": (
        "warning",
        "{count} listed images have no file of annotations, and are left out",
        "Annotate them; where nothing is there, write a file without objects",
    ),
    "polygons": (
        "info",
        "{count} label files hold polygons; the box around each is used",
        "Nothing, if boxes are what you want",
    ),
    "keypoints": ("info", "{count} label files hold key points, which are not used", "Nothing"),
    "confidences": (
        "warning",
        "{count} label files have a sixth number in a line, which is not used",
        "Make sure that these are annotations: detectors write a sixth number, their confidence",
    ),
    "other-file-names": (
        "info",
        "{count} annotation files name another image than the one with their own name, which is used",
        "Nothing, if the files were renamed together",
    ),
    "difficult": (
        "info",
        "{count} images have boxes marked as difficult; they are used like all others",
        "Nothing; the protocol of Pascal VOC leaves them out of the score",
    ),
    "other-annotations": (
        "info",
        "{count} annotation files have no list of annotations and are not used",
        "Nothing",
    ),
    "unread-splits": (
        "warning",
        "{count} files or folders with annotations belong to no known split and are not used",
        "Name them train, val or test",
    ),
    "class-lists-differ": (
        "info",
        "{count} classes are declared in some of the splits only",
        "Nothing, if their boxes are meant to be of one data set",
    ),
    "ignored-files": (
        "info",
        "{count} other files are not used",
        "Nothing, if they are not meant as data",
    ),
}
"""Severity, message and remedy of each kind of note."""


class Notes:
    """Collect items by kind, each of ``KINDS``."""

    def __init__(self) -> None:
        self._items: dict[str, list[str]] = {}
        self._others: list[Finding] = []

    def add(self, kind: str, item: str) -> None:
        assert kind in KINDS, kind
        self._items.setdefault(kind, []).append(item)

    def add_finding(self, finding: Finding) -> None:
        """Note a finding of no kind."""
        self._others.append(finding)

    def of(self, kind: str) -> Sequence[str]:
        return self._items.get(kind, ())

    def findings(self) -> tuple[Finding, ...]:
        told = []
        for kind, items in self._items.items():
            severity, message, remedy = KINDS[kind]
            told.append(Finding(severity, kind, message.format(count=len(items)), remedy, tuple(items)))
        return (*told, *self._others)
