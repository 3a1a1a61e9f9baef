"""Tolerances by name: what a number in a test may differ by, and why.

All are relative to the root mean square of the expected values, except where a name says otherwise.
"""

EXACT64 = 1e-12  # the same formula twice in float64, in another order of operations
ORACLE64 = 1e-10  # a function against e3nn or ASE in float64
REFERENCE64 = 1e-9  # a whole model against the stored outputs of the published code, float64
EQUIVARIANCE64 = 1e-10  # a whole model against itself, rotated; float64
EQUIVARIANCE32 = 2e-4  # the same in float32; found: 5e-5
FINITE_DIFFERENCE64 = 1e-6  # central differences against autograd with steps near 1e-4 Å
SAME_GRADIENT64 = 1e-10  # two processes against one, gradients of one step
SAME_LOSS64 = 1e-8  # two processes against one, losses after many steps
ENERGY_ROUND_TRIP_EV = 1e-9  # eV, absolute: scaling and unscaling an energy in float64
SAME_PATH64 = 1e-8  # Å, absolute: 25 moves of two implementations of one optimizer, which amplifies rounding
REFERENCE_GRADIENT32 = 1e-6  # gradients of one parameter against published ones that were stored in float32
SAME_PATH_MODEL64 = 1e-7  # Å or eV, absolute: 8 moves of two implementations with one model in float64
SAME_MOTION64 = 1e-9  # Å, absolute: some 10 fs of dynamics in batches of other sizes
PATIENCE_S = 900  # wall seconds: ends what hangs; nothing has to be as fast as that
ENDED_S = 60  # wall seconds from the death of a process to the end of the others; found: 2 to 17 on a busy machine
