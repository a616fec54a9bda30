"""The command-line interface: one module per subcommand, and modules that they share."""
