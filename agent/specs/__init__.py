"""Spec sheets: the abilities of systems and GPUs by their makers' figures, each with its source.

A TOML file per system or GPU; the file's name is its name. A source that begins with [P] is a
public data sheet or transcript, a source with [U] was not verified; the others are the papers on
these systems, by title.
"""
