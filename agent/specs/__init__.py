"""Spec sheets: manufacturers' specifications of systems and GPUs, with the source of each value.

Each system or GPU has a TOML file with its name. A source that starts with [P] is a public data
sheet or a transcript of one. A source that starts with [U] is unverified. Any other source is the
title of a paper about the system.
"""
