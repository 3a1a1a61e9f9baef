"""Counter-based random numbers: a draw is a pure function of keys and counters, not of earlier draws.

The key of a structure is made of (seed, epoch, sample).  A draw mixes the key with its use, the number of the atom in
the structure and the component.  So a structure gets the same corruption on CPU and GPU, at any place of any batch,
with any number of workers or processes, and after a resume.

The mixing is SplitMix64 (Steele, Lea, Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014): the state
moves by a multiple of an odd constant and is then scrambled by a bijection of 64 bits.  int64 products wrap around in
torch on every device, so tensor arithmetic is enough.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from enum import IntEnum
from typing import Any

import numpy as np
import torch
from torch import Tensor

_BITS = 64
_MASK = (1 << _BITS) - 1
_STEP = 0x9E3779B97F4A7C15  # 2**64 divided by the golden ratio, made odd
_SCRAMBLE = ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB))
_LAST_SHIFT = 31
_ROUNDS = 12  # of the permutation: enough for equal frequencies of the 24 orders of 4 elements


class Use(IntEnum):
    """Uses of draws.  Draws of one key with different uses are independent."""

    CHOOSE_SYSTEM = 1
    CHOOSE_ATOM = 2
    NOISE = 3
    MOMENTA = 4
    LANGEVIN = 5
    BAROSTAT = 6
    CHOOSE_STRAIN = 7
    STRAIN = 8
    NOISE_SIZE = 9


def fold(seed: int, *values: int) -> int:
    """Mix Python integers, in order, to one number in [0, 2**63); the same on all platforms and versions."""
    return _fold_bits(seed, *values) >> 1


def keys_for(seed: int, epoch: int, samples: Sequence[int] | Tensor) -> Tensor:
    """Keys [B] int64 of structures, from the seed of the run, the epoch and the numbers of the structures.

    Keys are on the device of ``samples`` if that is a tensor, else on the CPU.
    """
    samples = torch.as_tensor(samples, dtype=torch.int64)
    return _absorb(torch.full_like(samples, _signed(_fold_bits(seed, epoch))), samples)


def uniform(keys: Tensor, use: int, *counters: Tensor | int, dtype: torch.dtype = torch.float64) -> Tensor:
    """Uniform draws in [0, 1), of the shape that ``keys`` and ``counters`` (int64) broadcast to.

    float32 takes the leading 24 of the 53 bits of float64: the same draw, rounded down, so never 1.
    """
    digits = 53 if dtype == torch.float64 else 24
    bits = _shift_right(_draw(keys, use, *counters), _BITS - digits)
    return bits.to(dtype) * 2.0**-digits


def normal(keys: Tensor, use: int, *counters: Tensor | int, dtype: torch.dtype = torch.float64) -> Tensor:
    """Standard normal draws (Box and Muller 1958), of the shape that ``keys`` and ``counters`` (int64) broadcast to.

    Computed in float64 for any dtype, so float32 is float64 rounded.  |draw| < 8.6, since uniforms have 53 bits.
    """
    radius = 1.0 - uniform(keys, use, *counters, 0)  # in (0, 1], so that its logarithm is finite
    angle = uniform(keys, use, *counters, 1)
    return (torch.sqrt(-2.0 * torch.log(radius)) * torch.cos(2.0 * math.pi * angle)).to(dtype)


def permuted(key: int, size: int, places: np.ndarray) -> np.ndarray:
    """Elements at ``places`` (integers in [0, size)) of the permutation of 0 .. size - 1 with this ``key``; int64.

    Cost and memory do not depend on ``size``.  A Feistel network on pairs (row, column) of a grid of at least ``size``
    cells: each round shifts one coordinate, modulo its range, by a keyed hash of the other.  A round is invertible, so
    the network permutes the grid; a result outside [0, size) goes through it again (Black and Rogaway, "Ciphers with
    arbitrary finite domains", CT-RSA 2002), which is rare: the grid has at most sqrt(size) cells too many.
    """
    rows = math.isqrt(size - 1) + 1
    columns = -(-size // rows)
    value = _feistel(key, rows, columns, places.astype(np.uint64))
    while (outside := value >= size).any():
        value[outside] = _feistel(key, rows, columns, value[outside])
    return value.astype(np.int64)


def _feistel(key: int, rows: int, columns: int, value: np.ndarray) -> np.ndarray:
    row, column = np.divmod(value, np.uint64(columns))
    for number in range(0, _ROUNDS, 2):
        row = (row + _hash(_fold_bits(key, number), column) % np.uint64(rows)) % np.uint64(rows)
        column = (column + _hash(_fold_bits(key, number + 1), row) % np.uint64(columns)) % np.uint64(columns)
    return row * np.uint64(columns) + column


def _hash(state: int, values: np.ndarray) -> np.ndarray:
    """:func:`fold` of a state and values in numpy: ten times faster than torch on a few numbers."""
    return _scrambled(values * np.uint64(_STEP) + np.uint64((state + _STEP) & _MASK)) >> np.uint64(1)


def _draw(keys: Tensor, use: int, *counters: Tensor | int) -> Tensor:
    state = _absorb(keys, int(use))
    for counter in counters:
        state = _absorb(state, counter)
    return state


def _absorb(state: Tensor, value: Tensor | int) -> Tensor:
    """One SplitMix64 step by ``value + 1`` multiples of the constant, then the scramble; int64 with wrap-around."""
    if isinstance(value, int):
        state = state + _signed((value + 1) * _STEP)
    else:
        state = state + (value + 1) * _signed(_STEP)
    for shift, factor in _SCRAMBLE:
        state = (state ^ _shift_right(state, shift)) * _signed(factor)
    return state ^ _shift_right(state, _LAST_SHIFT)


def _shift_right(bits: Tensor, count: int) -> Tensor:
    """Logical right shift; torch shifts int64 arithmetically, so copies of the sign bit are masked."""
    return (bits >> count) & ((1 << (_BITS - count)) - 1)


def _fold_bits(*values: int) -> int:
    """:func:`_absorb` over Python integers from state 0, as an unsigned 64-bit number."""
    state = 0
    for value in values:
        state = _scrambled((state + (value + 1) * _STEP) & _MASK)
    return state


def _scrambled(bits: Any) -> Any:
    """The bijection, of an int or a uint64 array."""
    for shift, factor in _SCRAMBLE:
        bits = ((bits ^ (bits >> shift)) * factor) & _MASK
    return bits ^ (bits >> _LAST_SHIFT)


def _signed(bits: int) -> int:
    """The int64 with the same low 64 bits."""
    bits &= _MASK
    return bits - (1 << _BITS) if bits >> (_BITS - 1) else bits
