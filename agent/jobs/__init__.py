"""The processes behind the GPUs: who is there, what they do, whose job they are."""
