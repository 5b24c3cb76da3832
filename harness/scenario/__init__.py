"""From a YAML file to the trials it asks for: read, check, expand. The only YAML reader.

``read`` keeps the line of every key, ``schema`` says what is legal, ``load`` joins the two for
one profile, ``expand`` turns a checked scenario into trials. No I/O beyond the file handed in.
"""

from harness.scenario.expand import Trial, expand, launch_groups, server_command_flags
from harness.scenario.load import Fault, load_scenario, slugify
from harness.scenario.reference import ReferenceOptions, reference_options
from harness.scenario.schema import (
    PROFILES,
    Judge,
    KvBudget,
    Kvpress,
    Quality,
    Scenario,
    Slo,
    Workload,
    tail_start,
)

__all__ = [
    "PROFILES",
    "Fault",
    "Judge",
    "KvBudget",
    "Kvpress",
    "Quality",
    "ReferenceOptions",
    "Scenario",
    "Slo",
    "Trial",
    "Workload",
    "expand",
    "launch_groups",
    "load_scenario",
    "reference_options",
    "server_command_flags",
    "slugify",
    "tail_start",
]
