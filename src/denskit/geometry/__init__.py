"""Mathematics of rotations, spherical harmonics and neighbours, without models."""
