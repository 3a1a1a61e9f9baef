"""What every long command needs: devices, processes, interruption, memory, determinism, progress."""
