"""The command line: a subcommand per file."""
