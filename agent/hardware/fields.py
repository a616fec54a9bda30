"""NVML field IDs. The agent uses numbers, because nvidia-ml-py releases renumbered the names: IDs
251-273 changed twice, so a name of another release may query a different field.
"""

ALL_LINKS = 0xFFFFFFFF  # Scope for the sum of an NVLink field over all links of a GPU

# README.md in this folder explains which NVLink 5 and C2C IDs are not read, and why.
SINCE = {
    field: since
    for first, last, since in (
        (161, 163, (520,)),  # NVLink errors
        (202, 221, (560,)),  # NVLink 5
        (230, 230, (570,)),  # GPU recovery action
        (269, 271, (580, 82)),  # had other meanings in older drivers
    )
    for field in range(first, last + 1)
}
"""First driver version that supports each ID. All other IDs are supported since R450."""
