"""What was published: times that an opponent must reach to count, and what the paper says of the cost of DeNS."""

from __future__ import annotations

from dataclasses import dataclass

from denskit_bench.job import Job, Work

MATMUL_GFLOPS = 205.0  # of the machine that the published code was timed on: two cores, float32
LIMIT = 1.1  # an opponent slower than this times the published code says nothing about ours

# seconds of the published Equiformer with DeNS on a batch of 8, two cores, median
SECONDS: dict[tuple[Work, str, str], float] = {
    ("train", "equiformer_l2", "ethanol"): 0.93,
    ("train", "equiformer_l3", "ethanol"): 3.86,
    ("train", "equiformer_l2", "aspirin"): 3.91,
    ("energy_forces", "equiformer_l2", "ethanol"): 0.39,
    ("energy_forces", "equiformer_l3", "ethanol"): 1.04,
    ("energy_forces", "equiformer_l2", "aspirin"): 1.37,
}
BATCH = 8

# training with DeNS beside training without, in percent of time (arXiv:2403.09549)
DENS_PERCENT = {"equiformer_l2": 10.5, "equiformer_v2": 7.4, "escn": 1.5}


@dataclass(frozen=True, kw_only=True)
class Fairness:
    """Whether the e3nn formulation is as fast as the published code would be here."""

    published_s: float  # as it was timed
    scaled_s: float  # calculated: at the speed of large matmuls here
    opponent_over_scaled: float  # of medians
    valid: bool  # at most LIMIT


def fairness(job: Job, seconds: float, matmul_gflops: float) -> Fairness | None:
    """Judge an e3nn opponent that takes ``seconds``; None where nothing comparable was published."""
    published = SECONDS.get((job.work, job.model, job.system))
    unchanged = job.layers is None and job.l_max is None and job.cutoff is None and job.max_neighbors is None
    if published is None or not (unchanged and job.dens) or job.batch != BATCH or not job.against.startswith("e3nn"):
        return None
    if job.device != "cpu":  # matrix products are not what limits such small systems there
        return None
    scaled = published * MATMUL_GFLOPS / matmul_gflops
    return Fairness(
        published_s=published, scaled_s=scaled, opponent_over_scaled=seconds / scaled, valid=seconds <= LIMIT * scaled
    )
