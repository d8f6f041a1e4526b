"""File formats of parallel text, recognised by what a path holds.

A file of this folder defines ``FORMAT``, or several ``FORMATS``; adding it registers them.
"""

from __future__ import annotations

from vitrail.data.formats import formats_in

PAIR_FORMATS = formats_in("vitrail.tasks.translation.formats", "format of parallel text")
