"""Measurements, as ratios of one run: ours against hand-written loops on the same servers (`make bench`)."""
