"""``python -m denskit_bench``."""

from denskit.runtime.allocator import keep_freed_memory
from denskit.runtime.openmp import wait_briefly
from denskit_bench.cli import app

if __name__ == "__main__":
    keep_freed_memory()
    wait_briefly()
    app(prog_name="python -m denskit_bench")
