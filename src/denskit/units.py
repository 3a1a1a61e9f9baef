"""Units.  Denskit computes in eV, Å, fs and amu; readers and writers convert."""

# 1 kcal = 4184 J (thermochemical calorie, exact); 1 mol = 6.02214076e23 and 1 eV = 1.602176634e-19 J (2019 SI, exact).
KCAL_PER_MOL = 4184.0 / 6.02214076e23 / 1.602176634e-19  # eV, 0.0433641...
KJ_PER_MOL = 1000.0 / 6.02214076e23 / 1.602176634e-19  # eV
HARTREE = 27.211386245988  # eV (CODATA 2018)
BOHR = 0.529177210903  # Å (CODATA 2018)
GPA = 1.0 / 160.2176634  # eV/Å^3 (1 eV = 1.602176634e-19 J, exact)
BOLTZMANN = 1.380649e-23 / 1.602176634e-19  # eV/K (2019 SI, exact)
AMU = 1.66053906660e-27 * 1e10 / 1.602176634e-19  # eV fs^2/Å^2 (CODATA 2018); momenta are then in eV fs/Å
