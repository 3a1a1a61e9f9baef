"""The SLURM script of one training, on one or several nodes."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path


def training_script(arguments: Sequence[str], output: Path) -> str:
    """A script that trains with ``denskit train ARGUMENTS``, and is queued again until the training is done.

    The lines ``#SBATCH`` are to be edited; all other lines follow from them.
    """
    command = shlex.join(["-m", "denskit", "train", *arguments, "--resume"])
    return f"""#!/bin/bash
#SBATCH --job-name=denskit
#SBATCH --nodes=1                 # several: one training on all of them
#SBATCH --ntasks-per-node=1       # torchrun, which starts the processes of a node
#SBATCH --gpus-per-node=1         # a process each; without GPUs leave this line out and give PROCESSES below
#SBATCH --cpus-per-task=8         # of all processes of a node
#SBATCH --time=24:00:00
#SBATCH --signal=B:TERM@120       # two minutes before the end: save, and queue again
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --output={shlex.quote(f"{output.resolve()}.slurm.log".replace("%", "%%"))}
cd {shlex.quote(str(Path.cwd()))} || exit 1
PROCESSES=${{SLURM_GPUS_ON_NODE:-1}}
threads=$((SLURM_CPUS_PER_TASK / PROCESSES))
export OMP_NUM_THREADS=$((threads > 0 ? threads : 1))
# each attempt has a store of its own: in the shared one it would find the addresses of the last attempt, and hang
export TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1
# a port of its own: jobs on one node that share one end together
port=$((20000 + SLURM_JOB_ID % 20000))
first=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
asked=
trap 'asked=yes; scancel --signal=TERM "$SLURM_JOB_ID"' TERM
# srun does not take over the cores of the job by itself (SLURM 22.05 and later)
srun --cpus-per-task "$SLURM_CPUS_PER_TASK" torchrun \\
    --nnodes "$SLURM_JOB_NUM_NODES" --nproc-per-node "$PROCESSES" --max-restarts 3 \\
    --rdzv-backend c10d --rdzv-endpoint "$first:$port" --rdzv-id "$SLURM_JOB_ID-${{SLURM_RESTART_COUNT:-0}}" \\
    {command} &
wait $!
code=$?
if [ -n "$asked" ]; then
    wait $!
    scontrol requeue "$SLURM_JOB_ID"
fi
exit $code"""
