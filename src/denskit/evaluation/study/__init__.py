"""Studies: the same training in several variants, over axes such as the number of frames, repeated over seeds."""
