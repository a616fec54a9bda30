"""Data sheets: manufacturers' specifications of systems and GPUs, with the source of each value.

Each system or GPU has a TOML file with its name. Sources that start with [P] are public data sheets
or transcripts, and sources that start with [U] are unverified. All other sources are papers about
these systems, cited by title.
"""
