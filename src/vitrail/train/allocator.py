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

    Measured with a Transformer 192 wide and 6 deep, 65 tokens, torch 2.13: at batch 64 on one thread page
    faults fell from 4,000-9,500 a step to 0-400, and the processor time of a step by 0-3 %, within noise;
    at batch 256 in float32 on two threads the faults of a run of 9 steps fell from 2.15 to 0.52 million.
    """
    if platform.libc_ver()[0] != "glibc":
        return False
    mallopt = ctypes.CDLL(None).mallopt
    mapped = any(mallopt(_MMAP_THRESHOLD, limit) for limit in (_LARGEST_MMAP, _LARGEST_MMAP_OLD))
    return bool(mallopt(_TRIM_THRESHOLD, _LARGEST_TRIM)) and mapped
