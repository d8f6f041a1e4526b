"""File formats of labelled texts; each file of this folder registers its ``FORMAT`` or ``FORMATS``."""

from __future__ import annotations

from vitrail.data.formats import formats_in

TEXT_FORMATS = formats_in("vitrail.tasks.labelling.formats", "format of labelled texts")
