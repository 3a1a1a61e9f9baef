"""Programs in environments of their own: the line to them, their failures, and they themselves where installed."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from denskit_bench.fairchem import CHECKOUT
from denskit_bench.job import Job
from denskit_bench.measure import Plan, run
from denskit_bench.peers.process import FOLDER, PeerProcess

COUNTER = f"""
import sys
sys.path.append({str(FOLDER.parent)!r})
from peers.serving import serve

def build(job):
    print("a library that talks")
    steps = []
    def step():
        steps.append(job["add"])
        return {{"sum": sum(steps)}}
    return step, {{"parameters": 3}}

serve(build)
"""


def test_a_peer_answers_a_line_for_a_line_whatever_else_is_printed() -> None:
    job = json.dumps({"device": "cpu", "threads": 1, "add": 2})
    done = subprocess.run(
        [sys.executable, "-c", COUNTER], input=f"{job}\n\n\n", capture_output=True, text=True, check=True
    )
    ready, *answers = map(json.loads, done.stdout.splitlines())
    assert ready == {"parameters": 3}
    assert [answer["found"]["sum"] for answer in answers] == [2, 4]
    assert answers[0]["times"].keys() == {"wall", "cpu"}
    assert 0 <= answers[0]["memory"]["steps_mb"] < answers[0]["memory"]["process_mb"]


def test_a_peer_that_cannot_start_is_quoted() -> None:
    with pytest.raises(ValueError, match=r"(?s)mace ended early.*No module named 'mace'"):
        PeerProcess("mace", sys.executable, {"device": "cpu", "threads": 1, "channels": 1, "l_max": 0, "elements": [1]})


def test_a_missing_python_is_said() -> None:
    with pytest.raises(ValueError, match=r"--peer-python .*nowhere"):
        PeerProcess("mace", "/nowhere/python", {})


@pytest.mark.parametrize("peer", ["mace", "nequip"])
def test_calculators_of_peers_take_steps_beside_ours(peer: str) -> None:
    job = Job(
        work="md", model="equiformer_wide", system="ethanol", batch=1, layers=1, against=peer, peer_python=_python(peer)
    )
    found = run(job, Plan(repeats=1, warm_ups=1, memory=True)).to_dict()
    assert found["agreement"] is None
    assert found["ratio"] > 0
    assert found["sides"]["theirs"]["parameters"] > 0
    assert found["sides"]["theirs"]["memory"]["process_mb"] > 0


@pytest.mark.parametrize(
    ("model", "unused"),
    # published: the force head of eSEN has a matrix and a bias for degree 0, of which nothing is read
    [
        ("equiformer_v2", 0),
        ("equiformer_v3", 0),
        ("equiformer_v3_gradient", 0),
        ("escn", 0),
        ("esen", 129),
        ("esen_gradient", 0),
    ],
)
def test_fairchem_computes_what_we_compute(model: str, unused: int) -> None:
    job = Job(
        work="energy_forces", model=model, system="crystal" if "v3" in model else "slab", batch=1, layers=1, l_max=2,
        cutoff=6.0, against="fairchem", peer_python=_python("fairchem"),
    )  # fmt: skip
    if "v3" in model and CHECKOUT not in os.environ:
        pytest.skip(f"{CHECKOUT} names no checkout of the published EquiformerV3 (docs/benchmarks.md)")
    found = run(job, Plan(repeats=1, warm_ups=1, memory=False)).to_dict()
    assert found["sides"]["ours"]["parameters"] + unused == found["sides"]["theirs"]["parameters"]
    assert found["agreement"]["energy (float32, largest)"] < 0.1
    assert found["agreement"]["forces (float32, largest)"] < 0.1


@pytest.mark.parametrize("folder", ["", "/nowhere"])
def test_a_missing_checkout_is_said(folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(CHECKOUT, folder)
    job = Job(
        work="train", model="equiformer_v3", system="crystal", batch=1, against="fairchem", peer_python=sys.executable
    )
    with pytest.raises(ValueError, match=rf"{CHECKOUT}={folder}: name a checkout"):
        run(job, Plan(repeats=1, warm_ups=1, memory=False))


def _python(peer: str) -> str:
    variable = f"DENSKIT_{peer.upper()}_PYTHON"
    if variable not in os.environ:
        pytest.skip(f"{variable} names no Python with {peer} (docs/benchmarks.md)")
    return os.environ[variable]
