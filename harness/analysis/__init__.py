"""From stored facts to opinions: figures, intervals, ledger, verdicts, comparison. Pure.

- ``metrics.summarize(trial) -> Summary``: one trial in figures.
- ``stats.ratio_interval(baseline_by_repeat, variant_by_repeat) -> Interval | None``, and
  ``noise_floor(values) -> NoiseFloor | None``: what the replicates show.
- ``occupancy.occupancy(trial, kv_bytes_per_token=…) -> Occupancy | None``: tokens in flight beside
  the engine's blocks.
- ``ledger.ledger(trial, summary, predicted) -> Ledger | None``: where the memory went.
- ``verdict.verdicts(trial, summary, peers) -> tuple[Verdict, …]``: can the figures be trusted;
  ``fairness`` holds variants against each other.
- ``compare.analyse(bench, trials) -> Analysis``: all of it, joined with theory;
  ``compare.to_json(analysis) -> dict``: the same in plain JSON values.

The result types are in ``results``. ``theory`` sees no record and no figure made of one, and what
makes figures of records (``metrics``, ``occupancy``, ``request_blocks``) reaches no ``theory``, so
neither can lean on the other. They meet in ``compare`` and, strategy by strategy, in ``ceilings``,
``eviction``, ``prefix``, ``scaling``, ``waste`` and ``unstarted_server``; ``tests/test_floors.py``
holds it.
"""
