"""Damaged copies of a file's bytes, drawn from a seed: as a disk, a network or an attacker leaves them."""

from __future__ import annotations

import json
from collections.abc import Callable
from copy import deepcopy
from random import Random
from typing import Any

Mutation = Callable[[bytes, Random], bytes]

MOST_CHANGES = 4  # of one copy
GO_DEEPER = 0.75  # chance at each level of a tree
NUMBERS = (0, -1, 1, 2, 0.5, 1e300, -1e-300, 2**31, 2**63, 10**30, float("nan"), float("inf"))
TEXTS = ("", "x", "\x00", "../../etc/passwd", "\ud800", "a" * 300, "1", "null", "float32", "\x1b[31m")
ODD: tuple[Any, ...] = (None, True, [], {}, [[]], [None], {"": None}, [0] * 300, *NUMBERS, *TEXTS)
"""What stands in JSON where something else is expected."""
WORDS = (
    b"\x00",
    b"\xff",
    b"\x80\x05",
    b"{",
    b"]",
    b'"',
    b"\n",
    b"../",
    b"\xff" * 8,
    b"\x00" * 8,
    b"PK\x03\x04",
)


def mutate_bytes(content: bytes, random: Random) -> bytes:
    """Return bytes of which a few are flipped, cut off, left out, repeated, moved, or have others between."""
    changed = bytearray(content)
    for _ in range(random.randint(1, MOST_CHANGES)):
        if not changed:
            changed += random.choice(WORDS)
        start = _position(random, len(changed))
        length = min(random.choice((1, 1, 2, 4, 8, 64, len(changed))), len(changed) - start)
        match random.randrange(7):
            case 0:
                changed[start] ^= 1 << random.randrange(8)
            case 1:
                changed[start] = random.randrange(256)
            case 2:
                del changed[start:]
            case 3:
                del changed[start : start + length]
            case 4:
                changed[start:start] = changed[start : start + length]
            case 5:
                changed[start:start] = random.choice(WORDS)
            case 6:  # a number of eight bytes or fewer, at its limits
                width = random.choice((1, 2, 4, 8))
                number = random.choice(
                    (0, 1, 2 ** (8 * width) - 1, 2 ** (8 * width - 1), 2 ** (8 * width - 1) - 1)
                )
                changed[start : start + width] = number.to_bytes(width, random.choice(("little", "big")))
    return bytes(changed)


def mutate_json(content: bytes, random: Random) -> bytes:
    """Return JSON of which a few values are of another type or size, missing, repeated, or deeply nested."""
    root: list[Any] = [json.loads(content)]
    for _ in range(random.randint(1, MOST_CHANGES)):
        holder, key = root, 0
        while random.random() < GO_DEEPER and isinstance(holder[key], dict | list) and holder[key]:
            holder = holder[key]
            key = random.choice(list(holder)) if isinstance(holder, dict) else random.randrange(len(holder))
        value = holder[key]
        match random.randrange(6):
            case 0 | 1 | 2:
                holder[key] = deepcopy(random.choice(ODD))
            case 3 if holder is not root:
                del holder[key]
            case 4 if isinstance(holder, dict):
                holder[random.choice(TEXTS)] = deepcopy(random.choice([value, *ODD]))
            case 5:
                times = 2 if isinstance(value, dict | list) else 300  # not to grow without bound
                holder[key] = random.choice(([value] * random.choice((1, times)), {"x": value}))
    return json.dumps(root[0], ensure_ascii=random.random() < 0.9).encode("utf-8", "surrogatepass")


def mutate_description(content: bytes, random: Random) -> bytes:
    """Return damaged JSON: mostly of other values, sometimes of other bytes or nested without end."""
    chance = random.random()
    if chance < 0.8:
        return mutate_json(content, random)
    return mutate_bytes(content, random) if chance < 0.98 else b"[" * 100_000


def _position(random: Random, length: int) -> int:
    """Return a position that is near one of the ends more often than in between: headers are there."""
    near = min(length, 2 ** random.randint(1, 12))
    return random.choice(
        (random.randrange(length), random.randrange(near), length - 1 - random.randrange(near))
    )
