"""Division of each GPU's time: evidence over a window, a table of rules, an account of seconds."""
