"""What comes of GPU-hours, in three factors: given, at work, and how fast the tensor cores were."""

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
        text = f"of {_hours(self.given)} GPU-hours given, {_hours(self.worked)} worked"
        peak = self.of_peak
        return text if peak is None else f"{text}, at {100 * peak:.0f} % of the tensor peak"


def _hours(seconds: float) -> str:
    hours = seconds / HOUR
    return f"{hours:.0f}" if hours >= 100 else f"{hours:.3g}"
