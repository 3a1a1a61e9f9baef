"""Other programs as opponents: each runs in a Python of its own, where this folder is a package named ``peers``.

What a peer's process imports (``gauges``, ``serving`` and the file with its name) needs torch, numpy and ase, but not
Denskit.
"""
