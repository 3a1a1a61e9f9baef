"""Denskit: equivariant force fields with denoising of non-equilibrium structures (DeNS)."""

__version__ = "0.1.0"
