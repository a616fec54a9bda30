"""Division of each GPU's time: evidence over a window, rules, and accounts of the seconds."""
