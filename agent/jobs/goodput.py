"""Goodput of GPU-hours in three factors: allocated, active, and tensor speed."""

from typing import NamedTuple

HOUR = 3600.0


class Goodput(NamedTuple):
    """GPU-seconds: given to jobs, at work, and at the peak of the tensor cores that would do what
    they did (None where that cannot be read)."""

    given: float
    worked: float
    tensor: float | None

    @property
    def at_work(self) -> float | None:
        """Share of the given time, 0-1; None where none was given."""
        return self.worked / self.given if self.given > 0 else None

    @property
    def of_peak(self) -> float | None:
        """Tensor throughput while at work over the peak, 0-1: an upper bound of MFU."""
        known = self.tensor is not None and self.worked > 0
        return min(1.0, (self.tensor or 0.0) / self.worked) if known else None

    def __str__(self) -> str:
        given, worked = (amount(seconds / HOUR) for seconds in (self.given, self.worked))
        text = f"of {given} GPU-hours given, {worked} worked"
        peak = self.of_peak
        return text if peak is None else f"{text}, at {100 * peak:.0f} % of the tensor peak"


def amount(value: float) -> str:
    """GPU-hours or kWh to a hundredth, of many to less; more than none is never 0."""
    if 0 < value < 0.01:
        return "< 0.01"
    return f"{value:.{0 if value >= 100 else 1 if value >= 10 else 2}f}"
