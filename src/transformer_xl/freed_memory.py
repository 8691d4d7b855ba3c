"""Memory that a step gives back is kept for the next one.

The C library of most Linux systems asks the system for each large block and gives it back when it is freed; a training
step on a CPU then spends up to half of its time on the system's clearing of pages that it had a moment ago.
"""

from __future__ import annotations

import ctypes
import platform

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # of malloc.h
_LARGEST_KEPT_BLOCK = 40 << 20
"""Larger ones, as logits of many words, would find their room taken by smaller ones, and need more."""
_LARGEST_OF_OLDER_LIBRARIES = 32 << 20
_NEVER = (1 << 31) - 1


def keep_freed_memory() -> None:
    """Have this process keep freed blocks of up to 40 MiB for itself; does nothing without the GNU C library."""
    if platform.libc_ver()[0] != "glibc":
        return
    libc = ctypes.CDLL(None)
    if not libc.mallopt(_M_MMAP_THRESHOLD, _LARGEST_KEPT_BLOCK):
        libc.mallopt(_M_MMAP_THRESHOLD, _LARGEST_OF_OLDER_LIBRARIES)
    libc.mallopt(_M_TRIM_THRESHOLD, _NEVER)
