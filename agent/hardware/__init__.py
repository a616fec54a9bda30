"""Hardware behind a single seam: real, simulated and taped machines answer the same questions."""
