"""Two processes (gloo, started by torchrun) do what one does at the same global batch."""

from __future__ import annotations

import csv
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from subprocess import PIPE

import pytest
import torch

from denskit.data import load_data
from denskit.models.model_file import load_model
from denskit.runtime.device import choose_device
from denskit.runtime.processes import Processes, join_processes
from denskit.training.load_config import load_config
from denskit.training.trainer import Trainer

from tolerances import PATIENCE_S, SAME_GRADIENT64, SAME_LOSS64

pytestmark = pytest.mark.one_thread
STEPS = 20
WORKER = Path(__file__).with_name("distributed_worker.py")
TINY = Path(__file__).with_name("tiny.yaml")
OVERRIDES = [
    "training.dtype=float64", f"training.max_steps={STEPS}", "training.ema_decay=0.9", "training.clip_norm=100",
    "training.drop_last=false", "training.batch_size=3", "training.log_every=10", "training.evaluate_every=10 steps",
    "task.probability=0.4", "data.split.train=19", "seed=0",
]  # fmt: skip


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Folders with the results of one process and of two, started at the same time."""
    torchrun = ["-m", "torch.distributed.run", "--nproc-per-node=2", "--standalone"]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    runs = {"one": [], "two": torchrun}
    folders, running = {name: tmp_path_factory.mktemp(name) for name in runs}, []
    for name, launcher in runs.items():
        command = [sys.executable, *launcher, str(WORKER), str(TINY), str(folders[name]), str(STEPS), *OVERRIDES]
        running.append(subprocess.Popen(command, env=environment, stdout=PIPE, stderr=PIPE, text=True))
    try:
        for process in running:
            errors = process.communicate(timeout=PATIENCE_S)[1]
            assert process.returncode == 0, errors[-3000:]
    finally:
        for process in running:
            process.terminate()
    return folders


def test_one_of_two_has_no_corrupted_atom_in_the_first_step() -> None:
    """What the next test is about does occur."""
    config = load_config(TINY, [*OVERRIDES, "output=unused", "device=cpu"])
    loader = Trainer(config, load_data(config.data, config.seed), join_processes("cpu")).loader
    noise = loader.term_names.index("noise")
    corrupted = [replace(loader, rank=rank, num_processes=2).work(0).counts[noise].item() for rank in range(2)]
    assert min(corrupted) == 0 < max(corrupted)
    assert len(loader.samples(6)) == 1  # 19 structures in batches of 3: one process has nothing to do in that step


def test_two_processes_do_what_one_does(results: dict[str, Path]) -> None:
    one = torch.load(results["one"] / "rank0.pt", weights_only=True)
    ranks = [torch.load(results["two"] / f"rank{rank}.pt", weights_only=True) for rank in range(2)]
    assert torch.equal(ranks[0]["gradients"], ranks[1]["gradients"])
    size = one["gradients"].square().mean().sqrt()
    assert size > 0
    assert (ranks[0]["gradients"] - one["gradients"]).abs().max() < SAME_GRADIENT64 * size
    assert torch.equal(ranks[0]["terms"][:, 1], one["terms"][:, 1])  # counts
    torch.testing.assert_close(ranks[0]["terms"][:, 0], one["terms"][:, 0], rtol=SAME_LOSS64, atol=0)


def test_a_whole_run_of_two_writes_what_one_writes(results: dict[str, Path]) -> None:
    runs = [results[name] / "run" for name in ("one", "two")]
    rows = [list(csv.DictReader((run / "metrics.csv").open())) for run in runs]
    assert [row["step"] for row in rows[0]] == [row["step"] for row in rows[1]] == ["10", "20"]
    for name in ("train_loss", "train_forces_mae_meV_per_A", "valid_forces_mae_meV_per_A", "valid_energy_rmse_meV"):
        assert float(rows[1][-1][name]) == pytest.approx(float(rows[0][-1][name]), rel=1e-6)
    one, two = (load_model(run / "model.safetensors").state_dict() for run in runs)
    for name, value in one.items():
        torch.testing.assert_close(two[name], value, rtol=1e-7, atol=1e-9)


def test_alone_nothing_is_exchanged() -> None:
    alone = Processes(rank=0, count=1, device=torch.device("cpu"))
    tensor = torch.tensor([1.0, 2.0])
    assert alone.add(tensor) is tensor
    assert tensor.tolist() == [1.0, 2.0]
    assert alone.is_first


def test_devices_that_are_not_there_are_refused() -> None:
    assert choose_device("cpu") == torch.device("cpu")
    with pytest.raises(ValueError, match="device=gpu: no such device"):
        choose_device("gpu")
    with pytest.raises(ValueError, match="CUDA devices found"):
        choose_device("cuda:99")
