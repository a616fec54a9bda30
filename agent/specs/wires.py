"""Bandwidth by standard: PCIe by generation and width, NVLink by reported speed."""

_PCIE = {1: 2.5e9 * 8 / 10, 2: 5e9 * 8 / 10} | {
    generation: transfers * 128 / 130
    for generation, transfers in {3: 8e9, 4: 16e9, 5: 32e9}.items()
}
"""Bits per second and lane after line coding: 8b/10b, from generation 3 on 128b/130b."""

PCIE_SOURCE = "PCI Express Base Specification: transfers per second, times lanes, times line coding"

_NVLINK = ((19e9, 21e9, 20e9), (24.5e9, 27e9, 25e9), (49e9, 54e9, 50e9))
"""Reported speed from, to (bytes per second), and the nominal speed it stands for."""


def pcie_bytes_per_second(generation: int, lanes: int) -> float | None:
    """Bytes per second in each direction; None for a generation not known here.

    From generation 6 on, fixed-size packets take a share of the wire that depends on the device.
    """
    per_lane = _PCIE.get(generation)
    return per_lane * lanes / 8 if per_lane is not None else None


def nvlink_bytes_per_second(megabytes_per_second: float) -> float:
    """Nominal bytes per second in each direction of one link, from the speed that NVML reports.

    NVML counts line coding in (25781 or 26562 for a link of 25 GB/s); a speed not known here is
    taken as it is, an upper bound.
    """
    reported = megabytes_per_second * 1e6
    fits = (nominal for low, high, nominal in _NVLINK if low <= reported <= high)
    return next(fits, reported)
