"""Hardware behind a common interface: real, simulated, and recorded machines look alike."""
