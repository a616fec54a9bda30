"""Spec sheets: what systems and GPUs can do by their makers' figures, each with its source.

One TOML file a system or GPU; its name is the file's. A source that begins with [P] is a public
data sheet or transcript, one with [U] was not verified; the others are the papers on these systems,
by title.
"""
