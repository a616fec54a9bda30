"""The agent's interface to a machine, which is real, simulated, or recorded."""
