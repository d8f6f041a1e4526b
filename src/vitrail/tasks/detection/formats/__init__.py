"""File formats of detection data, recognised by what a path holds.

A file of this folder defines ``FORMAT``, or several ``FORMATS``; adding it registers them.
"""

from __future__ import annotations

from vitrail.data.formats import formats_in

BOX_FORMATS = formats_in("vitrail.tasks.detection.formats", "format of detection data")
