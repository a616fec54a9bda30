"""Division of each GPU's time: evidence over a window, rules, and an account of seconds."""
