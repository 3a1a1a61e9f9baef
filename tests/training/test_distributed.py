"""Several processes (gloo, started by torchrun) do what one does at the same global batch; one that dies is named."""

from __future__ import annotations

import csv
import os
import re
import signal
import socket
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from subprocess import PIPE

import pytest
import torch

from denskit.data import load_data
from denskit.models.model_file import load_model
from denskit.runtime.device import choose_device
from denskit.runtime.processes import Processes, join_processes
from denskit.training.checkpoint import load_checkpoint
from denskit.training.load_config import load_config
from denskit.training.trainer import Trainer

from tolerances import ENDED_S, PATIENCE_S, SAME_GRADIENT64, SAME_LOSS64

pytestmark = pytest.mark.one_thread
STEPS = 20
WORKER = Path(__file__).with_name("distributed_worker.py")
TINY = Path(__file__).with_name("tiny.yaml")
OVERRIDES = [
    "training.dtype=float64", f"training.max_steps={STEPS}", "training.ema_decay=0.9", "training.clip_norm=100",
    "training.drop_last=false", "training.batch_size=3", "training.log_every=10", "training.evaluate_every=10 steps",
    "task.probability=0.4", "data.split.train=19", "seed=0",
]  # fmt: skip


TORCHRUN = ["-m", "torch.distributed.run"]
# in the store that attempts share, the second one finds the addresses of the first and waits for them
OWN_STORE = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
ALONE = [[]]
TWO = [[*TORCHRUN, "--standalone", "--nproc-per-node=2"]]


def nodes(*options: str) -> list[list[str]]:
    """Two torchruns, as on two machines."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    static = [f"--master-addr={address.split(':')[0]}", f"--master-port={address.split(':')[1]}"]
    rendezvous = static if "--rdzv-backend=c10d" not in options else [f"--rdzv-endpoint={address}", "--rdzv-id=1"]
    return [[*TORCHRUN, f"--node-rank={rank}", *rendezvous, *options] for rank in range(2)]


def started(
    launchers: list[list[str]], output: Path, steps: int, *overrides: str, **environment: str
) -> list[subprocess.Popen[str]]:
    """The worker under each launcher, all at once."""
    surroundings = os.environ | {"OMP_NUM_THREADS": "1"} | environment
    worker = [str(WORKER), str(TINY), str(output), str(steps), *OVERRIDES, *overrides]
    return [
        subprocess.Popen(
            [sys.executable, *launcher, *worker], env=surroundings, stdout=PIPE, stderr=PIPE, text=True
        )
        for launcher in launchers
    ]  # fmt: skip


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Folders with the results of one process, of two, of two that share the optimizer's state, and of two nodes."""
    runs = {
        "one": (ALONE, []),
        "two": (TWO, []),
        "shared": (TWO, ["training.shard=true"]),
        "nodes": (nodes("--nnodes=2", "--nproc-per-node=2"), []),
    }
    folders, running = {name: tmp_path_factory.mktemp(name) for name in runs}, []
    for name, (launchers, overrides) in runs.items():
        running += started(launchers, folders[name], STEPS, *overrides)
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


@pytest.mark.parametrize(("name", "count"), [("two", 2), ("shared", 2), ("nodes", 4)])
def test_several_processes_do_what_one_does(results: dict[str, Path], name: str, count: int) -> None:
    one = torch.load(results["one"] / "rank0.pt", weights_only=True)
    ranks = [torch.load(results[name] / f"rank{rank}.pt", weights_only=True) for rank in range(count)]
    assert all(torch.equal(rank["gradients"], ranks[0]["gradients"]) for rank in ranks)
    size = one["gradients"].square().mean().sqrt()
    assert size > 0
    assert (ranks[0]["gradients"] - one["gradients"]).abs().max() < SAME_GRADIENT64 * size
    assert torch.equal(ranks[0]["terms"][:, 1], one["terms"][:, 1])  # counts
    torch.testing.assert_close(ranks[0]["terms"][:, 0], one["terms"][:, 0], rtol=SAME_LOSS64, atol=0)


def test_a_shared_state_is_held_once(results: dict[str, Path]) -> None:
    one, two = (torch.load(results[name] / "rank0.pt", weights_only=True)["held"] for name in ("one", "two"))
    shares = [torch.load(results["shared"] / f"rank{rank}.pt", weights_only=True)["held"] for rank in range(2)]
    assert torch.equal(one, two) and torch.equal(shares[0] + shares[1], one)
    assert all((share < 0.6 * one).all() for share in shares)


@pytest.mark.parametrize("name", ["two", "shared", "nodes"])
def test_a_whole_run_of_several_writes_what_one_writes(results: dict[str, Path], name: str) -> None:
    runs = [results[other] / "run" for other in ("one", name)]
    rows = [list(csv.DictReader((run / "metrics.csv").open())) for run in runs]
    assert [row["step"] for row in rows[0]] == [row["step"] for row in rows[1]] == ["10", "20"]
    for key in ("train_loss", "train_forces_mae_meV_per_A", "valid_forces_mae_meV_per_A", "valid_energy_rmse_meV"):
        assert float(rows[1][-1][key]) == pytest.approx(float(rows[0][-1][key]), rel=1e-6)
    same_weights(*(run / "model.safetensors" for run in runs))


def same_weights(one: Path, other: Path) -> None:
    expected, found = (load_model(path).state_dict() for path in (one, other))
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize(
    ("first", "then", "overrides", "said"),
    [
        (TWO, ALONE, ["training.shard=true"], "processes: 2 before, 1 now"),
        (ALONE, TWO, [], "processes: 1 before, 2 now"),
    ],
    ids=["shared_2_to_1", "1_to_2"],
)
def test_a_checkpoint_continues_on_another_number_of_processes(
    results: dict[str, Path],
    tmp_path: Path,
    first: list[list[str]],
    then: list[list[str]],
    overrides: list[str],
    said: str,
) -> None:
    """Saved after 10 steps, also by processes that share the optimizer's state, and ended by others."""
    half = started(first, tmp_path, 0, *overrides, "training.checkpoint_every=10", KILL="12")[0]
    half.communicate(timeout=PATIENCE_S)
    assert load_checkpoint(tmp_path / "run" / "checkpoints" / "last.pt").step == 10
    rest = started(then, tmp_path, 0)[0]
    errors = rest.communicate(timeout=PATIENCE_S)[1]
    assert rest.returncode == 0, errors[-3000:]
    assert said in (tmp_path / "run" / "train.log").read_text(encoding="utf-8")
    same_weights(results["one"] / "run" / "model.safetensors", tmp_path / "run" / "model.safetensors")


def test_a_time_budget_is_kept_by_all(tmp_path: Path) -> None:
    settings = (
        "training.max_steps=null",
        "training.budget=1 day",
        "training.shard=true",
        "training.warmup=0",
        "training.warmup_lr=null",
    )
    process = started(TWO, tmp_path, 0, *settings, FITS="12")[0]
    errors = process.communicate(timeout=PATIENCE_S)[1]
    assert process.returncode == 0, errors[-3000:]
    assert load_config(tmp_path / "run").training.max_steps == 12
    assert load_checkpoint(tmp_path / "run" / "checkpoints" / "last.pt").step == 12


def test_a_killed_process_is_named_and_ends_the_others(tmp_path: Path) -> None:
    process = started(TWO, tmp_path, 0, KILL="3")[0]
    _, errors = process.communicate(timeout=PATIENCE_S)
    assert time.time() - float((tmp_path / "killed").read_text(encoding="utf-8")) < ENDED_S
    assert process.returncode != 0
    assert re.search(r"process 0 of 2 \(counted from 0\) lost process 1 \(\d+ on ", errors), errors[-3000:]


def test_an_elastic_restart_continues_from_the_last_checkpoint(results: dict[str, Path], tmp_path: Path) -> None:
    """Two nodes found by rendezvous; a killed process of the first starts both anew."""
    launchers = nodes("--rdzv-backend=c10d", "--nnodes=1:2", "--nproc-per-node=1", "--max-restarts=2")
    running = started(launchers, tmp_path, 0, "training.checkpoint_every=4", KILL="9", **OWN_STORE)
    ended = [process.communicate(timeout=PATIENCE_S)[1] for process in running]
    assert all(process.returncode == 0 for process in running), ended[0][-2000:] + ended[1][-2000:]
    assert "resumed after step 8" in (tmp_path / "run" / "train.log").read_text(encoding="utf-8")
    same_weights(results["one"] / "run" / "model.safetensors", tmp_path / "run" / "model.safetensors")


def test_an_elastic_training_goes_on_without_a_lost_node(results: dict[str, Path], tmp_path: Path) -> None:
    """A torchrun killed with its process; the other, which holds the rendezvous, continues alone."""
    options = ("--rdzv-backend=c10d", "--nnodes=1:2", "--nproc-per-node=1", "--max-restarts=2")
    conf = [f"--rdzv-conf=is_host={host},last_call_timeout=5" for host in (1, 0)]
    left, lost = ([*launcher, own] for launcher, own in zip(nodes(*options), conf, strict=True))
    checkpoints = "training.checkpoint_every=4"
    (staying,) = started([left], tmp_path, 0, checkpoints, **OWN_STORE)
    (leaving,) = started([lost], tmp_path, 0, checkpoints, KILL_NODE="9", **OWN_STORE)
    leaving.communicate(timeout=PATIENCE_S)
    assert leaving.returncode == -signal.SIGKILL
    errors = staying.communicate(timeout=PATIENCE_S)[1]
    assert staying.returncode == 0, errors[-3000:]
    log = (tmp_path / "run" / "train.log").read_text(encoding="utf-8")
    assert "resumed after step 8" in log and "processes: 2 before, 1 now" in log
    same_weights(results["one"] / "run" / "model.safetensors", tmp_path / "run" / "model.safetensors")


def test_half_precision_with_a_process_that_has_no_work(tmp_path: Path) -> None:
    half = ["model.forces=direct", "training.amp=fp16", "training.dtype=float32", "training.batch_size=1"]
    (process,) = started(TWO, tmp_path, 2, *half, "training.accumulate=1")
    errors = process.communicate(timeout=PATIENCE_S)[1]
    assert process.returncode == 0, errors[-3000:]


def test_alone_nothing_is_exchanged() -> None:
    alone = Processes(rank=0, count=1, device=torch.device("cpu"))
    tensor = torch.tensor([1.0, 2.0])
    assert alone.add(tensor) is tensor
    assert tensor.tolist() == [1.0, 2.0]
    assert alone.is_first


def test_one_process_computes_on_its_own_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Streams and seeds are of torch's current device, which was the first one whatever was asked for."""
    current: list[torch.device] = []
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "set_device", current.append)
    assert join_processes("cuda:1").device == torch.device("cuda:1") == current[0]


def test_devices_that_are_not_there_are_refused() -> None:
    assert choose_device("cpu") == torch.device("cpu")
    with pytest.raises(ValueError, match="device=gpu: no such device"):
        choose_device("gpu")
    with pytest.raises(ValueError, match="CUDA devices found"):
        choose_device("cuda:99")
