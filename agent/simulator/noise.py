"""Noise that has no rhythm, and is the same in every run."""


def noise(number: int, series: int = 0) -> float:
    """The value of one place in a series, between -1 and 1."""
    mixed = (number * 0x9E3779B1 + series * 0x85EBCA77 + 1) & 0xFFFFFFFF
    mixed = ((mixed ^ (mixed >> 15)) * 0x7FEB352D) & 0xFFFFFFFF
    mixed = ((mixed ^ (mixed >> 15)) * 0x846CA68B) & 0xFFFFFFFF
    return (mixed >> 8) / (1 << 23) - 1.0
