"""Loads that know where their own time went: each reports its true shares and steps as it runs."""
