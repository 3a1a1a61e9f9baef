"""What is made of measured times: ratios, shares of ceilings, whether the opponent counts."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch

from denskit_bench.contender import Counted, count
from denskit_bench.job import Job
from denskit_bench.machine import Machine
from denskit_bench.measure import Measured, Memory, Plan, Record
from denskit_bench.published import fairness
from denskit_bench.report import scaling_figure

TRAIN = Job(work="train", model="equiformer_l2", system="ethanol", against="e3nn", dens=True)
MACHINE = Machine(
    cpu="", cpus=1, threads=1, device="cpu", load=0.0, packages={}, matmul_gflops=100.0, copy_gb_per_s=10.0
)


def measured(times: list[float], megabytes: float) -> Measured:
    return Measured(
        name="a",
        times={"cpu": times, "wall": [2 * t for t in times]},
        first_step_s=1.0,
        counted=Counted(matmul_gflop=20.0, traffic_gb=4.0),
        parameters=1,
        kernels=None,
        memory=Memory(process_mb=megabytes, steps_mb=megabytes),
    )


def record(job: Job, ours: list[float], theirs: list[float], threads: int = 1) -> Record:
    return Record(
        job=job, plan=Plan(threads=threads), machine=MACHINE, facts={"edges": 7}, agreement={"forces": 1e-12},
        sides={"theirs": measured(theirs, 20.0), "ours": measured(ours, 10.0)},
    )  # fmt: skip


def test_ratios_are_theirs_over_ours_for_times_and_ours_over_theirs_for_memory() -> None:
    found = record(TRAIN, ours=[1.0, 2.0, 3.0], theirs=[4.0, 6.0, 6.0])
    ratios = found.ratios()
    assert found.ratio == ratios["cpu_median"] == 3.0
    assert ratios["wall_min"] == 4.0
    assert ratios["memory_process"] == 0.5
    assert ratios["lower_quartile"] <= 3.0 <= ratios["upper_quartile"]


def test_with_several_threads_wall_time_is_the_clock() -> None:
    found = record(TRAIN, ours=[1.0], theirs=[3.0], threads=2)
    found.sides["theirs"].times["wall"][0] = 8.0
    assert found.clock == "wall"
    assert found.ratio == 4.0


def test_the_ratio_of_dens_is_what_it_costs() -> None:
    found = record(replace(TRAIN, work="dens", against="without"), ours=[1.1, 1.1], theirs=[1.0, 1.0])
    assert found.ratio == pytest.approx(1.1)
    assert found.to_dict()["paper_percent"] == 10.5


def test_shares_are_of_the_ceilings_of_the_same_run() -> None:
    shares = measured([0.5, 1.0, 9.0], 1.0).shares(MACHINE, "cpu")
    assert shares == {"matmul": pytest.approx(0.2), "copy": pytest.approx(0.4)}


def test_a_record_is_plain_data_with_all_that_a_reader_needs() -> None:
    data = json.loads(json.dumps(record(TRAIN, ours=[1.0, 1.0], theirs=[4.0, 4.0]).to_dict()))
    wanted = {
        "job", "commit", "date", "machine", "threads", "load", "edges", "agreement", "clock", "ratio", "ratio_of",
        "ratios", "valid", "fairness", "sides",
    }  # fmt: skip
    assert wanted <= data.keys()
    assert data["ratio"] == 4.0
    assert data["sides"]["ours"]["median_s"] == 1.0
    assert len(data["sides"]["ours"]["quartiles_s"]) == 3
    assert data["sides"]["theirs"]["memory"]["process_mb"] == 20.0


def test_an_opponent_slower_than_the_published_code_makes_the_ratio_void() -> None:
    """Published: 0.93 s where a matmul does 205 GFLOP/s, so 1.86 s at half that speed; 1.1 times that may pass."""
    good, bad = fairness(TRAIN, 2.04, 102.5), fairness(TRAIN, 2.06, 102.5)
    assert good is not None
    assert good.scaled_s == pytest.approx(1.86)
    assert good.valid
    assert bad is not None
    assert not bad.valid
    assert record(TRAIN, ours=[1.0], theirs=[4.0]).to_dict()["valid"] is False


@pytest.mark.parametrize(
    "change",
    [{"batch": 4}, {"dens": False}, {"against": "plain"}, {"layers": 2}, {"system": "slab"}, {"device": "cuda"}],
)
def test_without_a_published_time_nothing_is_judged(change: dict[str, object]) -> None:
    assert fairness(replace(TRAIN, **change), 1.0, 100.0) is None


def test_products_and_traffic_are_counted_and_views_are_free() -> None:
    a, b = torch.ones(3, 4), torch.ones(4, 5)
    product = count(lambda: a.mT.mT @ b)
    assert product.matmul_gflop == pytest.approx(2 * 3 * 4 * 5 / 1e9)
    assert product.traffic_gb == pytest.approx(4 * (12 + 20 + 15) / 1e9)
    assert count(lambda: a.reshape(2, 6)[:, :3]).traffic_gb == 0
    assert count(lambda: torch.ones(1, 4).expand(3, 4) + a).traffic_gb == pytest.approx(4 * (4 + 4 + 12 + 12) / 1e9)


def test_a_plan_without_steps_is_refused() -> None:
    with pytest.raises(ValueError, match="repeats=0"):
        Plan(repeats=0)


def test_degrees_have_whole_ticks_and_sides_differ_without_colour() -> None:
    sides = {side: {"median_s": 0.1, "name": side} for side in ("ours", "theirs")}
    records = [{"l_max": degree, "sides": sides} for degree in (2, 3)]
    job = {"work": "energy_forces", "model": "equiformer_l2"}
    figure = scaling_figure({"over": "l_max", "cost_per": None, "values": [2, 3], "records": records, "job": job})
    (axes,) = figure.axes
    low, high = axes.get_xlim()
    assert [tick for tick in axes.get_xticks() if low <= tick <= high] == [2, 3]
    assert len({(line.get_linestyle(), line.get_marker()) for line in axes.lines}) == 2
