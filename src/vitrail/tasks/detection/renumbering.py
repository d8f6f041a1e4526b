"""Detect and correct class ids of boxes that are off by one from those of the names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
from jaxtyping import Int64

from vitrail.tasks.detection.dataset import BoxDataset, BoxSplit, UnknownBoxes


def class_id_shift(declared: Sequence[int], used: Sequence[int]) -> int:
    """Return 1 or -1 if boxes count from one more or one less than names do, 0 if they agree.

    Ids are off by one if they skip the first declared one, use the one after the last and no other
    undeclared one; or the other way round. Few of many ids prove nothing.

    Args:
        declared: the ids that have names, ascending; there may be none.
        used: those of the boxes.

    >>> class_id_shift((0, 1, 2), (1, 2, 3)), class_id_shift((0, 1, 2), (0, 1, 3))
    (1, 0)
    """
    if not declared or 2 * len(used) < len(declared):
        return 0
    for step, unused, beyond in (
        (1, declared[0], declared[-1] + 1),
        (-1, declared[-1], declared[0] - 1),
    ):
        if beyond in used and unused not in used and set(used) <= {class_id + step for class_id in declared}:
            return step
    return 0


def renumber_classes(dataset: BoxDataset) -> BoxDataset:
    """Correct the classes of all boxes if ids are off by one; else return the data set itself.

    Boxes that were left out, since their id has no name, come after the others of their image.
    """
    declared = dataset.facts.declared_class_ids
    shift = class_id_shift(declared, tuple(dataset.facts.boxes_by_class_id))
    if not shift:
        return dataset
    label_of = {class_id + shift: label for label, class_id in enumerate(declared)}
    # No box has the label of a meaningless id.
    labels = np.array([label_of.get(class_id, -1) for class_id in declared], dtype=np.int64)
    unknown = dataset.facts.unknown_boxes
    train, validation, test = (
        _renumber(split, labels, label_of, unknown) for split in dataset.splits.values()
    )
    used = {class_id - shift: count for class_id, count in dataset.facts.boxes_by_class_id.items()}
    facts = replace(dataset.facts, boxes_by_class_id=used, unknown_boxes={})
    return replace(dataset, train=train, validation=validation, test=test, facts=facts)


def _renumber(
    split: BoxSplit,
    labels: Int64[np.ndarray, " classes"],
    label_of: Mapping[int, int],
    unknown: Mapping[str, UnknownBoxes],
) -> BoxSplit:
    all_boxes, all_labels, all_crowds = [], [], []
    none = UnknownBoxes(np.zeros((0, 4), dtype=np.float32), (), np.zeros(0, dtype=np.bool_))
    for place, name in enumerate(split.names):
        left_out = unknown.get(name, none)
        added = [label_of[class_id] for class_id in left_out.class_ids if isinstance(class_id, int)]
        all_boxes.append(np.concatenate((split.boxes[place], left_out.boxes_xyxy)))
        all_labels.append(np.concatenate((labels[split.labels[place]], np.array(added, dtype=np.int64))))
        all_crowds.append(np.concatenate((split.is_crowd[place], left_out.is_crowd)))
    return BoxSplit(split.images, all_boxes, all_labels, split.names, sizes=split.sizes, is_crowd=all_crowds)
