"""Where each GPU's time goes: evidence over a window, a table of rules, an account of seconds."""
