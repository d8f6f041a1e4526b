"""File formats of captioned images, recognised by what a path holds.

A file of this folder defines ``FORMAT``, or several ``FORMATS``; adding it registers them.
"""

from __future__ import annotations

from vitrail.data.formats import formats_in

CAPTION_FORMATS = formats_in("vitrail.tasks.captioning.formats", "format of captioned images")
