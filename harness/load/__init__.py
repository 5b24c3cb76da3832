"""Plays a plan against an OpenAI-compatible server and records what happened.

``events`` reads a streamed answer, ``wire`` sends a request and stamps its bytes, ``player``
keeps closed and open loops going, ``watch`` watches the client itself, ``workers`` spreads a
load over processes, ``play`` is the door.
"""

from harness.load.play import play
from harness.load.target import LoadOutcome, LoadProgress, Target

__all__ = ["LoadOutcome", "LoadProgress", "Target", "play"]
