"""File formats of captioned images.

Each file of this folder defines ``FORMAT`` or ``FORMATS``, which registers it.
"""

from __future__ import annotations

from vitrail.data.formats import formats_in

CAPTION_FORMATS = formats_in("vitrail.tasks.captioning.formats", "format of captioned images")
