"""Bandwidth by standard: PCIe by generation and width."""

_PCIE = {1: 2.5e9 * 8 / 10, 2: 5e9 * 8 / 10} | {
    generation: transfers * 128 / 130
    for generation, transfers in {3: 8e9, 4: 16e9, 5: 32e9}.items()
}
_PCIE[6] = 64e9 * 236 / 256
"""Bits per second and lane after line coding: 8b/10b, from generation 3 on 128b/130b. Generation 6
sends units of 256 bytes, 20 of which are its link layer's and for error correction."""

PCIE_SOURCE = "PCI Express Base Specification: transfers per second, times lanes, times line coding"


def pcie_bytes_per_second(generation: int, lanes: int) -> float | None:
    """Bytes per second in each direction; None for a generation not known here."""
    per_lane = _PCIE.get(generation)
    return per_lane * lanes / 8 if per_lane is not None else None
