"""Tapes: what a machine's backends answered, taped on the machine and played back anywhere."""

from agent.backends.taping.answers import TapeError
from agent.backends.taping.player import Player
from agent.backends.taping.reading import Tape
from agent.backends.taping.recorder import Recorder

__all__ = ["Player", "Recorder", "Tape", "TapeError"]
