"""Divides the time of each GPU among states and causes: evidence, rules, and accounts."""
