"""The charts of a report: each a function of plain values, each answering one question.

* ``memory``: does the engine grant the KV memory that theory predicts? Does what is stored at the
  peak match what the requests in flight should hold? Where does the server's memory go?
* ``load``: how many output tokens per second, and how long does a user wait, typically (p50) and
  on a bad day (p90)?
* ``ecdf``: what share of the requests waited at most how long?
* ``phases``: how much of a request's time is spent before its first token, how much after?
* ``sweep``: what happens as concurrency grows, and how far is that from the device's best?
* ``scores``: what does each strategy buy, side by side?
* ``over_time``: how full was the KV pool while requests ran, waited and were preempted?
* ``strategy``, ``trade_off``, ``quality``, ``reference``: what the sections of the strategies ask.
* ``run_ratios``: what changed from one run to others?

Axes start at zero wherever lengths are compared. Not covered: which finding a title states and
what a caption says, which ``gallery`` and its neighbours decide from the same values.
"""

from harness.report.charts.ecdf import Steps, ecdf
from harness.report.charts.load import (
    Bar,
    BarGroup,
    LatencyGroup,
    Spread,
    latency,
    throughput,
)
from harness.report.charts.memory import (
    PART_NAMES,
    MemoryPoint,
    Pair,
    Stack,
    in_use,
    ledger,
    memory,
    paired_bars,
)
from harness.report.charts.over_time import Timeline, occupancy
from harness.report.charts.parts import LONG_TAIL, MAX_COLUMNS, MAX_MARKS, Chart
from harness.report.charts.phases import Parts, phases
from harness.report.charts.scores import Score, ScorePanel, scores
from harness.report.charts.sweep import Ceiling, SweepLine, sweep

__all__ = [
    "LONG_TAIL",
    "MAX_COLUMNS",
    "MAX_MARKS",
    "PART_NAMES",
    "Bar",
    "BarGroup",
    "Ceiling",
    "Chart",
    "LatencyGroup",
    "MemoryPoint",
    "Pair",
    "Parts",
    "Score",
    "ScorePanel",
    "Spread",
    "Stack",
    "Steps",
    "SweepLine",
    "Timeline",
    "ecdf",
    "in_use",
    "latency",
    "ledger",
    "memory",
    "occupancy",
    "paired_bars",
    "phases",
    "scores",
    "sweep",
    "throughput",
]
