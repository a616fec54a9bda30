"""Divides each GPU's time among states and causes, and keeps an account of the time."""
