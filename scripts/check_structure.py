"""Fail when a source file or a function has grown too long to be read: 600 lines a file, 80 a function."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

MAX_FILE = 600
MAX_FUNCTION = 80
ROOT = Path(__file__).resolve().parent.parent
FOLDERS = ("src", "benchmarks")


def complaints(path: Path) -> Iterator[str]:
    """Yield one line for the file if it is too long, and one for each function in it that is."""
    text = path.read_text(encoding="utf-8")
    name = path.relative_to(ROOT)
    lines = len(text.splitlines())
    if lines > MAX_FILE:
        yield f"{name}: {lines} lines (at most {MAX_FILE})"
    for node in ast.walk(ast.parse(text, filename=str(path))):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            assert node.end_lineno is not None
            lines = node.end_lineno - node.lineno + 1
            if lines > MAX_FUNCTION:
                yield f"{name}:{node.lineno}: {node.name} has {lines} lines (at most {MAX_FUNCTION})"


def main() -> int:
    """Print all complaints; return the exit status."""
    files = sorted(path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py"))
    found = [line for path in files for line in complaints(path)]
    print("\n".join(found) or f"Sizes are fine in {len(files)} files.")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
