"""What a strategy costs in answer quality: questions put to servers, and verdicts of a judge.

``client`` is the HTTP door, ``prompts`` makes questions of exact token length, ``passes`` has a
server answer and score them, ``judge`` has pairs of answers compared. Nothing is computed here:
what the records say is the business of ``harness.analysis``.
"""
