"""What the agent says to input that it cannot use."""


class BadInput(ValueError):
    """Something that the user gave cannot be used; the message is one sentence. Exit status 2."""
