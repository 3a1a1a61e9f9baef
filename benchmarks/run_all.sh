#!/usr/bin/env bash
# Every contest of docs/performance.md, one after the other, into a folder of JSON files.
# Usage: benchmarks/run_all.sh FOLDER [THREADS] [REPEATS].  Run it on a quiet machine: about 40 minutes with 1 thread.
set -euo pipefail
folder=${1:?folder for the results}
threads=${2:-1}
repeats=${3:-20}
export OMP_NUM_THREADS=$threads
mkdir -p "$folder"
for system in ethanol aspirin; do
    for model in equiformer_l2 equiformer_l3; do
        for work in train energy_forces; do
            denskit bench "$work" --model "$model" --system "$system" --batch 8 --against e3nn \
                --threads "$threads" --repeats "$repeats" --json "$folder/$work-$model-$system-$threads.json"
        done
    done
done
