"""Figures as people read them."""


def percent(share: float) -> str:
    """A share, 0-1, as a percentage."""
    return f"{100 * share:.0f} %"


def gigabytes(rate: float) -> str:
    """Bytes per second."""
    return f"{rate / 1e9:.2f} GB/s"


def carried(ratio: float, limit: float) -> str:
    """What a path carries, of what it can."""
    return f"{ratio * limit / 1e9:.2f} of {limit / 1e9:.2f} GB/s"


def processes(number: float, kind: str = "") -> str:
    """1 process, 2 loader processes."""
    return f"{number:.0f} {kind}process{'' if number == 1 else 'es'}"
