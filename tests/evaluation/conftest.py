"""Evaluations need a run: the small one of the tests of training."""

from training.conftest import tiny as tiny
from training.conftest import tiny_file as tiny_file
