"""Devices, processes, interruption, memory, determinism, progress and folders of long commands."""
