"""Keep freed memory in the process instead of handing it back to the system after every step."""

from __future__ import annotations

import ctypes
import platform

# Option numbers of glibc's malloc.h.
_TRIM_THRESHOLD = -1
_MMAP_THRESHOLD = -3
_LARGEST_TRIM = 2**31 - 1
_LARGEST_MMAP = 2**31 - 4097  # the largest C int that is still a whole number of pages less one
_LARGEST_MMAP_OLD = 32 * 2**20  # glibc before 2.35 refuses more


def keep_freed_memory() -> bool:
    """Ask glibc to reuse large freed blocks, and return whether it agreed.

    By default glibc maps every large tensor anew and unmaps it when freed, so each step touches fresh
    pages and the kernel zeroes them again. Nothing happens on another C library, or where malloc was
    replaced (jemalloc and tcmalloc keep memory by themselves).
    """
    if platform.libc_ver()[0] != "glibc":
        return False
    mallopt = ctypes.CDLL(None).mallopt
    mapped = any(mallopt(_MMAP_THRESHOLD, limit) for limit in (_LARGEST_MMAP, _LARGEST_MMAP_OLD))
    return bool(mallopt(_TRIM_THRESHOLD, _LARGEST_TRIM)) and mapped
