"""File formats of parallel text.

Each file of this folder defines ``FORMAT`` or ``FORMATS``, which registers it.
"""

from __future__ import annotations

from vitrail.data.formats import formats_in

PAIR_FORMATS = formats_in("vitrail.tasks.translation.formats", "format of parallel text")
