"""Files and bytes to typed samples, and the doctor that looks at them first. Knows no model."""

from vitrail.data.dataset import ImageDataset, ImageSplit
from vitrail.data.doctor import check
from vitrail.data.findings import Finding, Verdict
from vitrail.data.images import read_image
from vitrail.data.opening import open_dataset
from vitrail.data.preprocessing import Preprocessing, channel_statistics, sample_images
from vitrail.data.source import ImageSample, ImageSource
from vitrail.data.stream import evaluation_batches, training_batches

__all__ = [
    "Finding",
    "ImageDataset",
    "ImageSample",
    "ImageSource",
    "ImageSplit",
    "Preprocessing",
    "Verdict",
    "channel_statistics",
    "check",
    "evaluation_batches",
    "open_dataset",
    "read_image",
    "sample_images",
    "training_batches",
]
