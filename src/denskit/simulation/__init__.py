"""Use a trained force field: calculator, relaxation, dynamics, stability."""
