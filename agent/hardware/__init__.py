"""Common interface to the hardware of real, simulated, and recorded machines."""
