"""The command-line interface. Each subcommand has a module."""
