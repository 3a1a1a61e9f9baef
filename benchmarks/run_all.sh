#!/usr/bin/env bash
# Every measurement of docs/benchmarks.md, the most wanted first, into a folder of JSON files and a report.
#
#     benchmarks/run_all.sh FOLDER [THREADS] [PART ...]
#
# Parts: train forces fused dens md neighbors scaling fairchem peers threads (default: all but threads).  Peers are
# left out unless their Pythons are named: MACE_PYTHON, NEQUIP_PYTHON, FAIRCHEM_PYTHON (for EquiformerV3 also its
# checkout: DENSKIT_EQUIFORMER_V3).  A record that is there already is not measured again, so an interrupted run goes
# on.  Run it on a quiet machine.
set -euo pipefail
folder=${1:?folder for the results}
threads=${2:-1}
shift $(($# < 2 ? $# : 2))
parts=${*:-train forces fused dens md neighbors scaling fairchem peers}
export OMP_NUM_THREADS=$threads
PYTHONPATH=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)${PYTHONPATH:+:$PYTHONPATH}
export PYTHONPATH
mkdir -p "$folder"

bench() { # NAME VERB OPTIONS ...
    local file="$folder/$1-$threads.json"
    shift
    if [ -e "$file" ]; then return; fi
    echo "$(date +%H:%M) denskit_bench $*"
    python -m denskit_bench "$@" --json "$file" || echo "failed: denskit_bench $*" >&2
}

part_train() {
    bench train-l2-ethanol train --threads "$threads"
    bench train-l3-ethanol train --model equiformer_l3 --threads "$threads"
    bench train-l2-aspirin train --system aspirin --repeats 10 --threads "$threads"
    bench train-l3-aspirin train --model equiformer_l3 --system aspirin --repeats 5 --threads "$threads"
    bench train-l2-ethanol-eager train --against e3nn-eager --repeats 10 --threads "$threads"
}

part_forces() {
    bench forces-l2-ethanol energy_forces --threads "$threads"
    bench forces-l3-ethanol energy_forces --model equiformer_l3 --threads "$threads"
    bench forces-l2-aspirin energy_forces --system aspirin --threads "$threads"
    bench forces-l2-aspirin-1 energy_forces --system aspirin --batch 1 --threads "$threads"
    bench forces-l3-aspirin energy_forces --model equiformer_l3 --system aspirin --repeats 10 --threads "$threads"
}

part_fused() {
    bench fused-train-l2-ethanol train --against plain --threads "$threads"
    bench fused-train-l3-ethanol train --model equiformer_l3 --against plain --threads "$threads"
    bench fused-train-l2-aspirin train --system aspirin --against plain --repeats 10 --threads "$threads"
    bench fused-forces-l2-aspirin-1 energy_forces --system aspirin --batch 1 --against plain --threads "$threads"
    bench e3nn-fused-train-l2-ethanol train --kernels fused --threads "$threads"
    bench e3nn-fused-train-l3-ethanol train --model equiformer_l3 --kernels fused --threads "$threads"
    bench e3nn-fused-train-l2-aspirin train --system aspirin --kernels fused --repeats 10 --threads "$threads"
    bench e3nn-fused-forces-l2-ethanol energy_forces --kernels fused --threads "$threads"
    bench e3nn-fused-forces-l2-aspirin-1 energy_forces --system aspirin --batch 1 --kernels fused --threads "$threads"
}

part_dens() {
    bench dens-l2 dens --threads "$threads"
    bench dens-l3 dens --model equiformer_l3 --threads "$threads"
    bench dens-escn dens --model escn --system slab --batch 1 --repeats 5 --warm-ups 1 --threads "$threads"
    bench dens-v2 dens --model equiformer_v2 --system slab --batch 1 --repeats 5 --warm-ups 1 --threads "$threads"
}

part_md() {
    bench md-ethanol md --system ethanol --threads "$threads"
    bench md-aspirin md --threads "$threads"
    bench md-ethanol-16 md --system ethanol --replicas 16 --threads "$threads"
    bench md-aspirin-16 md --replicas 16 --repeats 10 --threads "$threads"
    bench md-aspirin-fused md --against plain --threads "$threads"
    bench md-aspirin-compiled md --compile --threads "$threads"
    bench md-liquid md --system liquid-500 --repeats 5 --warm-ups 1 --threads "$threads"
}

part_neighbors() {
    bench neighbors-liquid neighbors --repeats 10
    bench neighbors-slab neighbors --model equiformer_v2 --system slab --batch 8
    bench loader-slab loader
    bench loader-ethanol loader --system ethanol --model equiformer_l2
}

part_scaling() {
    bench scaling-atoms scaling --over atoms --threads "$threads"
    bench scaling-edges scaling --over edges --threads "$threads"
    bench scaling-batch scaling --over batch --model equiformer_l2 --system ethanol --against e3nn --memory \
        --threads "$threads"
    bench scaling-l scaling --over l_max --values 2,3 --model equiformer_l2 --system ethanol --batch 8 --against e3nn \
        --work train --dens --memory --threads "$threads"
    bench scaling-l-wide scaling --over l_max --values 1,2,3,4 --model equiformer_wide --system ethanol --batch 8 \
        --threads "$threads"
    bench scaling-neighbors scaling --over atoms --values 576,4608,9000,36000 --work neighbors --threads "$threads"
}

part_fairchem() {
    if [ -z "${FAIRCHEM_PYTHON:-}" ]; then return; fi
    for model in equiformer_v2 escn; do
        bench "fairchem-$model-train" train --model "$model" --system slab --batch 1 --no-dens --against fairchem \
            --peer-python "$FAIRCHEM_PYTHON" --repeats 5 --warm-ups 1 --threads "$threads"
        bench "fairchem-$model-forces" energy_forces --model "$model" --system slab --batch 1 --no-dens \
            --against fairchem --peer-python "$FAIRCHEM_PYTHON" --repeats 5 --warm-ups 1 --threads "$threads"
    done
    for model in esen esen_gradient; do
        bench "fairchem-$model-train" train --model "$model" --system slab --batch 1 --no-dens --against fairchem \
            --peer-python "$FAIRCHEM_PYTHON" --repeats 3 --warm-ups 1 --threads "$threads"
    done
    if [ -z "${DENSKIT_EQUIFORMER_V3:-}" ]; then return; fi
    for model in equiformer_v3 equiformer_v3_gradient; do
        bench "published-$model-train" train --model "$model" --system crystal --batch 1 --no-dens --against fairchem \
            --peer-python "$FAIRCHEM_PYTHON" --repeats 3 --warm-ups 1 --threads "$threads"
    done
}

part_peers() {
    local peer python kernels system
    for peer in mace nequip; do
        python=$([ "$peer" = mace ] && echo "${MACE_PYTHON:-}" || echo "${NEQUIP_PYTHON:-}")
        if [ -z "$python" ]; then continue; fi
        for system in ethanol aspirin liquid-72; do
            for kernels in plain fused; do
                bench "$peer-$system-$kernels" md --model equiformer_wide --system "$system" --against "$peer" \
                    --peer-python "$python" --kernels "$kernels" --repeats 10 --threads "$threads"
            done
            bench "$peer-compiled-$system" md --model equiformer_wide --system "$system" --against "$peer-compiled" \
                --compile --peer-python "$python" --repeats 10 --threads "$threads"
        done
    done
}

part_threads() {
    bench threads-train-l2-ethanol train --threads 2
    bench threads-train-l2-ethanol-fused train --kernels fused --threads 2
    bench threads-forces-l2-aspirin-1 energy_forces --system aspirin --batch 1 --threads 2
}

for part in $parts; do "part_$part"; done
python -m denskit_bench report "$folder"/*.json --output "$folder/report"
