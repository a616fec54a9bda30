"""Data sheets: manufacturers' specifications of systems and GPUs, each with its source.

There is a TOML file per system or GPU, named after it. Sources starting with [P] are public data
sheets or transcripts, and sources starting with [U] are unverified. All other sources are papers
about these systems, cited by title.
"""
