#!/usr/bin/env bash
# All that is to be measured on a machine with a GPU, the most wanted first, in slices of time:
#
#     benchmarks/gpu.sh [--device cuda] [--slice SECONDS] [--tiny] [FOLDER]
#
# 1. Tests: every model by every way of computing on the GPU against the CPU, and trainings by CUDA graphs against those
#    without.  If one fails, nothing is measured.
# 2. Ratios: training steps, energies and forces, DeNS, dynamics, scaling (denskit_bench; it checks agreement itself).
# 3. The paper's run on MD17: Equiformer (L = 2) with DeNS on aspirin.
#
# Call it again and again: what is done is not done again, and the training goes on from its checkpoint.  Exit code 75:
# the slice is over, and something is left.  FOLDER (default runs/gpu) gets gpu.json and report/benchmarks.md.
# $MD17_ASPIRIN names the file of the data; without it they are downloaded.  --tiny: small sizes, to try the script.
set -uo pipefail
device=cuda slice=600 tiny= workers=4 folder=runs/gpu
while [ $# -gt 0 ]; do
    case $1 in
        --device) device=$2; shift 2 ;;
        --slice) slice=$2; shift 2 ;;
        --tiny) tiny=yes workers=0; shift ;;
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
    within python -m pytest -n "$workers" -q -m gpu ${tiny:+-k "envelope and auto"} "$root/tests/contract/test_devices.py" \
        "$root/tests/training/test_recorded.py" >"$folder/tests.log" 2>&1
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
    local model
    bench train-l2-ethanol train --model equiformer_l2 --system ethanol --no-memory
    bench md-aspirin md --model equiformer_l2 --compile --no-memory
    bench forces-l2-aspirin energy_forces --model equiformer_l2 --system aspirin --batch 1 --compile --no-memory
    bench train-l2-aspirin train --model equiformer_l2 --system aspirin
    bench dens-l2 dens --model equiformer_l2 --no-memory
    bench train-l3-ethanol train --model equiformer_l3 --system ethanol --no-memory
    for model in equiformer_v3 esen equiformer_v3_gradient; do
        bench "train-$model" train --model "$model" --system crystal --batch 4 --no-dens --against none
    done
    for model in equiformer_v2 escn; do
        bench "dens-$model" dens --model "$model" --system slab --batch 8 --repeats 10
        if [ -n "${FAIRCHEM_PYTHON:-}" ]; then
            bench "fairchem-$model" train --model "$model" --system slab --batch 8 --no-dens --against fairchem \
                --peer-python "$FAIRCHEM_PYTHON"
        fi
    done
    bench md-aspirin-64 md --model equiformer_l2 --replicas 64 --compile --no-memory
    bench train-l3-aspirin train --model equiformer_l3 --system aspirin
    bench train-l2-ethanol-eager train --model equiformer_l2 --system ethanol --no-recorded --no-memory
    bench forces-l3-aspirin energy_forces --model equiformer_l3 --system aspirin --batch 1 --compile --no-memory
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
