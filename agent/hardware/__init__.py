"""The interface to the hardware. It is the same for real, simulated, and recorded machines."""
