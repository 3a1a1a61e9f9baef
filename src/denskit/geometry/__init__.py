"""Pure mathematics of rotations and neighbours; no model."""
