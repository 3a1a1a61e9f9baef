#!/usr/bin/env bash
# All that is to be measured on a machine with a GPU, the most wanted first, in slices of time:
#
#     benchmarks/gpu.sh [--device cuda] [--slice SECONDS] [--tiny] [FOLDER]
#
# 1. Tests: every model by every way of computing on the GPU against the CPU.  If one fails, nothing is measured.
# 2. Ratios: training steps, energies and forces, DeNS, dynamics, scaling (denskit_bench; it checks agreement itself).
# 3. The paper's run on MD17: Equiformer (L = 2) with DeNS on aspirin.
#
# Call it again and again: what is done is not done again, and the training goes on from its checkpoint.  Exit code 75:
# the slice is over, and something is left.  FOLDER (default runs/gpu) gets gpu.json and report/benchmarks.md.
# $MD17_ASPIRIN names the file of the data; without it they are downloaded.  --tiny: small sizes, to try the script.
set -uo pipefail
device=cuda slice=600 tiny= folder=runs/gpu
while [ $# -gt 0 ]; do
    case $1 in
        --device) device=$2; shift 2 ;;
        --slice) slice=$2; shift 2 ;;
        --tiny) tiny=yes; shift ;;
        -*) echo "unknown option $1; see the head of $0" >&2; exit 2 ;;
        *) folder=$1; shift ;;
    esac
done
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
export PYTHONPATH=$root/src:$root/benchmarks${PYTHONPATH:+:$PYTHONPATH} DENSKIT_DEVICE=$device
mkdir -p "$folder/records"
SECONDS=0
left=0

within() { # COMMAND ...: in what is left of the slice; 143: it was stopped there
    local rest=$((slice - SECONDS))
    if [ "$rest" -lt 1 ]; then return 143; fi
    timeout --preserve-status --kill-after=60 --signal=TERM "$rest" "$@"
    local code=$?
    if [ $code -eq 137 ] && [ "$SECONDS" -ge "$slice" ]; then return 143; fi # it outlived TERM: killed, not failed
    return $code
}

bench() { # NAME VERB OPTIONS ...
    local file="$folder/records/$1.json" code
    shift
    if [ -e "$file" ] || [ -e "$file.failed" ]; then return; fi
    if [ "$SECONDS" -ge "$slice" ]; then left=1; return; fi
    if [ -n "$tiny" ]; then set -- "$@" --repeats 2 --warm-ups 1; fi
    echo "$(date +%H:%M) denskit_bench $*"
    within python -m denskit_bench "$@" --device "$device" --json "$file" >"$file.log" 2>&1
    code=$?
    if [ $code -eq 143 ]; then left=1; elif [ $code -ne 0 ]; then mv "$file.log" "$file.failed"; fi
}

tests() {
    if [ -e "$folder/tests.passed" ]; then return; fi
    echo "$(date +%H:%M) tests on $device"
    within python -m pytest -n 0 -q -m gpu ${tiny:+-k "envelope and auto"} "$root/tests/contract/test_devices.py" \
        >"$folder/tests.log" 2>&1
    local code=$?
    if [ $code -eq 143 ]; then left=1; return; fi
    tail -n 1 "$folder/tests.log"
    if [ $code -ne 0 ]; then echo "wrong numbers on $device, nothing is measured: $folder/tests.log" >&2; exit 1; fi
    tail -n 1 "$folder/tests.log" >"$folder/tests.passed"
}

ratios() {
    if [ -n "$tiny" ]; then
        bench train train --model equiformer_small --system ethanol --batch 1 --against plain --no-memory
        bench dens dens --model equiformer_small --system ethanol --batch 1 --no-memory
        return
    fi
    local model system
    for model in l2 l3; do
        for system in ethanol aspirin; do
            bench "train-$model-$system" train --model "equiformer_$model" --system "$system"
            bench "forces-$model-$system" energy_forces --model "equiformer_$model" --system "$system" --batch 1
        done
        bench "dens-$model" dens --model "equiformer_$model"
    done
    bench md-aspirin md --model equiformer_l2
    bench md-aspirin-16 md --model equiformer_l2 --replicas 16
    for model in equiformer_v2 escn; do
        bench "dens-$model" dens --model "$model" --system slab --batch 8
        bench "train-$model" train --model "$model" --system slab --batch 8 --against none
        if [ -n "${FAIRCHEM_PYTHON:-}" ]; then
            bench "fairchem-$model" train --model "$model" --system slab --batch 8 --no-dens --against fairchem \
                --peer-python "$FAIRCHEM_PYTHON"
        fi
    done
    bench scaling-edges scaling --over edges
    bench scaling-atoms scaling --over atoms
    bench scaling-batch scaling --over batch --model equiformer_l2 --system ethanol --work train --memory
}

paper() {
    local run="$folder/md17-aspirin" data=(data.name=md17 data.molecule=aspirin) code
    if [ -e "$folder/md17.json" ]; then return; fi
    if [ -n "${MD17_ASPIRIN:-}" ]; then data=("data.path=$MD17_ASPIRIN" "${data[@]}"); fi
    set -- md17/equiformer_l2_dens "${data[@]}"
    if [ -n "$tiny" ]; then
        set -- demo data.name=embedded data.molecule=ethanol task=dens training.max_steps=4 training.batch_size=2
    fi
    echo "$(date +%H:%M) denskit train $*"
    within python -m denskit train "$@" "device=$device" "output=$run" --resume >>"$folder/md17.log" 2>&1
    code=$?
    if [ $code -eq 143 ]; then left=1; return; fi
    if [ $code -ne 0 ]; then tail -n 5 "$folder/md17.log" >&2; exit 1; fi
    within python -m denskit evaluate "$run" --device "$device" --json >"$folder/md17.partial" 2>>"$folder/md17.log" ||
        { left=1; return; }
    mv "$folder/md17.partial" "$folder/md17.json"
}

tests
if [ $left -eq 0 ]; then ratios; fi
if [ $left -eq 0 ]; then paper; fi
records=("$folder"/records/*.json)
if [ -e "${records[0]}" ]; then python -m denskit_bench report "${records[@]}" --output "$folder/report"; fi
python - "$folder" <<'PYTHON'
"""All results as one JSON file."""
import json
import sys
from pathlib import Path

folder = Path(sys.argv[1])
log = folder / "tests.passed"
found = {
    "tests": log.read_text().strip() if log.is_file() else None,
    "records": {path.stem: json.loads(path.read_text()) for path in sorted(folder.glob("records/*.json"))},
    "failed": {path.name.split(".")[0]: path.read_text()[-2000:] for path in sorted(folder.glob("records/*.failed"))},
    "md17": json.loads((folder / "md17.json").read_text()) if (folder / "md17.json").is_file() else None,
}
(folder / "gpu.json").write_text(json.dumps(found, indent=2) + "\n")
print(f"Wrote {folder / 'gpu.json'}: {len(found['records'])} records, {len(found['failed'])} failed")
PYTHON
if [ $left -ne 0 ]; then echo "the slice is over; call again to go on"; exit 75; fi
