"""Real GPUs asked: `python -m tests.hardware` prints every figure and ends with 1 if one is off."""
