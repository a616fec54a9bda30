"""Tapes: what a machine's backends answered, taped on the machine and played back anywhere."""

from agent.replay.answers import TapeError
from agent.replay.player import TapePlayer
from agent.replay.reading import Tape
from agent.replay.recorder import TapeRecorder

__all__ = ["Tape", "TapeError", "TapePlayer", "TapeRecorder"]
