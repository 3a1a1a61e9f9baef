"""``python -m denskit_bench``."""

from denskit.runtime.allocator import keep_freed_memory
from denskit_bench.cli import app

if __name__ == "__main__":
    keep_freed_memory()
    app(prog_name="python -m denskit_bench")
