"""Loads that know where their own time went: each tells its true shares and steps as it runs."""
