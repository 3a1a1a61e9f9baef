"""Write src/denskit/geometry/wigner_3j.npz: the real Wigner 3j tensors up to degree 6, from Racah's formula alone.

Run from anywhere: ``python scripts/generate_wigner_3j.py [OUTPUT]``.

Method.  SU(2) Clebsch-Gordan coefficients in exact rational arithmetic (Racah 1942, eq. 16; Condon-Shortley phases) are
taken to the real basis of e3nn, whose component m = -l..l of degree l = 1 is (x, y, z), and divided by their norm.
The sign that results is e3nn's since version 0.5.  The published Equiformer weights were trained with e3nn 0.4.4, whose
tensors differ by an overall sign for the sorted triples in ``OPPOSITE_SIGNS``; the shipped file has the 0.4.4 signs.
The list is complete up to degree 6: it was found by comparing all 50 sorted triples with the table inside the 0.4.4
wheel.  Only l1 <= l2 <= l3 is stored, since both versions obey the same permutation rule (see
``denskit.geometry.wigner_3j``).
"""

from __future__ import annotations

import sys
from fractions import Fraction
from math import factorial, sqrt
from pathlib import Path

import numpy as np

L_MAX = 6
OPPOSITE_SIGNS = frozenset(
    {(1, l, l) for l in range(2, L_MAX + 1)} | {(3, 4, 6), (4, 4, 5), (4, 5, 6), (5, 5, 5), (5, 6, 6)}
)
OUTPUT = Path(__file__).resolve().parents[1] / "src" / "denskit" / "geometry" / "wigner_3j.npz"


def clebsch_gordan(l1: int, m1: int, l2: int, m2: int, l3: int, m3: int) -> float:
    """<l1 m1 l2 m2 | l3 m3> by Racah's formula: a rational sum times the square root of a rational."""
    if m1 + m2 != m3:
        return 0.0
    total = Fraction(0)
    for k in range(max(0, l2 - l3 - m1, l1 - l3 + m2), min(l1 + l2 - l3, l1 - m1, l2 + m2) + 1):
        denominators = (k, l1 + l2 - l3 - k, l1 - m1 - k, l2 + m2 - k, l3 - l2 + m1 + k, l3 - l1 - m2 + k)
        total += Fraction((-1) ** k, int(np.prod([factorial(n) for n in denominators], dtype=object)))
    numerators = (l3 + l1 - l2, l3 - l1 + l2, l1 + l2 - l3, l3 + m3, l3 - m3, l1 - m1, l1 + m1, l2 - m2, l2 + m2)
    product = int(np.prod([factorial(n) for n in numerators], dtype=object))
    return sqrt(Fraction((2 * l3 + 1) * product, factorial(l1 + l2 + l3 + 1))) * float(total)


def real_to_complex(l: int) -> np.ndarray:
    """Unitary [2l+1, 2l+1]: column m holds the real harmonic m = -l..l in complex harmonics, with the phase (-i)^l."""
    matrix = np.zeros((2 * l + 1, 2 * l + 1), dtype=complex)
    matrix[l, l] = 1.0
    for m in range(1, l + 1):
        matrix[l - m, l + m] = 1 / sqrt(2)
        matrix[l - m, l - m] = -1j / sqrt(2)
        matrix[l + m, l + m] = (-1) ** m / sqrt(2)
        matrix[l + m, l - m] = 1j * (-1) ** m / sqrt(2)
    return (-1j) ** l * matrix


def wigner_3j(l1: int, l2: int, l3: int) -> np.ndarray:
    """Real 3j tensor [2l1+1, 2l2+1, 2l3+1] of norm 1, for l1 <= l2 <= l3, in e3nn 0.4.4 signs."""
    assert l1 <= l2 <= l3 <= l1 + l2, (l1, l2, l3)
    complex_3j = np.array(
        [
            [[clebsch_gordan(l1, m1, l2, m2, l3, m3) for m3 in range(-l3, l3 + 1)] for m2 in range(-l2, l2 + 1)]
            for m1 in range(-l1, l1 + 1)
        ]
    )
    bases = real_to_complex(l1), real_to_complex(l2), real_to_complex(l3).conj()
    tensor = np.einsum("ai,bj,ck,abc->ijk", *bases, complex_3j) / sqrt(2 * l3 + 1)
    assert abs(tensor.imag).max() < 1e-14, "the phases (-i)^l make the tensor real"
    return np.where(abs(tensor.real) < 1e-14, 0.0, tensor.real) * (-1 if (l1, l2, l3) in OPPOSITE_SIGNS else 1)


def main(output: Path) -> None:
    """Write the non-zero elements of all sorted triples, one after the other."""
    degrees, counts, elements, values = [], [], [], []
    for l1 in range(L_MAX + 1):
        for l2 in range(l1, L_MAX + 1):
            for l3 in range(l2, min(l1 + l2, L_MAX) + 1):
                flat = wigner_3j(l1, l2, l3).reshape(-1)
                (nonzero,) = np.nonzero(flat)
                degrees.append((l1, l2, l3))
                counts.append(len(nonzero))
                elements.append(nonzero)
                values.append(flat[nonzero])
    np.savez_compressed(
        output,
        degrees=np.array(degrees, dtype=np.int8),  # [T, 3] with l1 <= l2 <= l3
        counts=np.array(counts, dtype=np.int32),  # [T] non-zero elements of each triple
        elements=np.concatenate(elements).astype(np.int16),  # [sum counts] flat index into [2l1+1, 2l2+1, 2l3+1]
        values=np.concatenate(values),  # [sum counts] float64
    )
    print(f"{output}: {len(degrees)} tensors, {sum(counts)} elements, {output.stat().st_size} bytes")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else OUTPUT)
