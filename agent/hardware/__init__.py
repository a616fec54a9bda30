"""Hardware behind one seam: real, simulated and taped machines answer the same questions."""
