"""The shipped Wigner 3j tensors: against the published version's values, the installed e3nn, and their own script."""

from __future__ import annotations

import importlib.util
import itertools
from pathlib import Path

import numpy as np
import pytest
import torch
from e3nn import o3

from denskit.geometry.wigner_3j import L_MAX, wigner_3j

from tolerances import EXACT64, ORACLE64

ROOT = Path(__file__).resolve().parents[2]
COUPLED = [
    degrees
    for degrees in itertools.product(range(L_MAX + 1), repeat=3)
    if abs(degrees[0] - degrees[1]) <= degrees[2] <= degrees[0] + degrees[1]
]
# Sorted triples whose sign e3nn changed after 0.4.4.
CHANGED = {(1, l, l) for l in range(2, L_MAX + 1)} | {(3, 4, 6), (4, 4, 5), (4, 5, 6), (5, 5, 5), (5, 6, 6)}


def test_equals_e3nn_0_4_4(reference_dir: Path) -> None:
    reference = np.load(reference_dir / "e3nn_reference.npz", allow_pickle=False)
    names = [name for name in reference.files if name.startswith("w3j_")]
    assert len(names) == 34
    for name in names:
        l1, l2, l3 = map(int, name.split("_")[1:])
        np.testing.assert_allclose(wigner_3j(l1, l2, l3).numpy(), reference[name], rtol=0, atol=EXACT64)


@pytest.mark.parametrize("degrees", COUPLED)
def test_equals_installed_e3nn_but_for_known_signs(degrees: tuple[int, int, int]) -> None:
    sign = -1 if tuple(sorted(degrees)) in CHANGED else 1
    expected = sign * o3.wigner_3j(*degrees, dtype=torch.float64)
    torch.testing.assert_close(wigner_3j(*degrees), expected, rtol=0, atol=ORACLE64)


def test_invariant_under_rotation() -> None:
    """Without a table: C_ijk = D_ai D_bj D_ck C_abc, and the norm is 1.

    D is solved from Y(R x) = D Y(x), because e3nn's own wigner_D has float32 generators unless told otherwise.
    """
    points = torch.randn(40, 3, dtype=torch.float64)
    rotation = torch.linalg.qr(torch.randn(3, 3, dtype=torch.float64))[0]
    rotation = rotation * rotation.det()  # proper
    matrices = []
    for l in range(L_MAX + 1):
        before, after = (o3.spherical_harmonics(l, x, normalize=True) for x in (points, points @ rotation.T))
        matrices.append(torch.linalg.lstsq(before, after).solution.T)
    for degrees in COUPLED:
        tensor = wigner_3j(*degrees)
        rotated = torch.einsum("ai,bj,ck,abc->ijk", *(matrices[l] for l in degrees), tensor)
        torch.testing.assert_close(rotated, tensor, rtol=0, atol=ORACLE64)
        torch.testing.assert_close(tensor.square().sum().item(), 1.0, rtol=0, atol=EXACT64)


def test_signs_by_hand() -> None:
    """Known values: the dot product and the cross product, 1/sqrt(3) and epsilon_ijk / sqrt(6)."""
    torch.testing.assert_close(wigner_3j(1, 1, 0)[..., 0], torch.eye(3, dtype=torch.float64) / 3**0.5)
    epsilon = torch.zeros(3, 3, 3, dtype=torch.float64)
    for i, j, k in ((0, 1, 2), (1, 2, 0), (2, 0, 1)):
        epsilon[i, j, k], epsilon[j, i, k] = 1, -1
    torch.testing.assert_close(wigner_3j(1, 1, 1), epsilon / 6**0.5)


def test_shipped_file_is_what_the_script_writes(tmp_path: Path) -> None:
    spec = importlib.util.spec_from_file_location("generate", ROOT / "scripts" / "generate_wigner_3j.py")
    assert spec is not None and spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    script.main(tmp_path / "wigner_3j.npz")
    with np.load(tmp_path / "wigner_3j.npz") as written, np.load(script.OUTPUT) as shipped:
        assert written.files == shipped.files
        for name in written.files:
            np.testing.assert_allclose(written[name], shipped[name], rtol=0, atol=EXACT64)
    assert script.OUTPUT.stat().st_size < 300_000


def test_result_is_the_callers_own() -> None:
    wigner_3j(1, 1, 2).zero_()
    assert bool(wigner_3j(1, 1, 2).any())


@pytest.mark.parametrize(
    ("degrees", "message"), [((1, 1, 3), "do not couple"), ((7, 1, 7), "0 to 6"), ((-1, 1, 1), "0 to 6")]
)
def test_refused(degrees: tuple[int, int, int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        wigner_3j(*degrees)
