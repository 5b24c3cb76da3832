"""From stored facts to opinions: figures, intervals, ledger, verdicts, comparison. Pure.

===============================================================  ==============================
``metrics.summarize(trial: TrialRecord) -> Summary``              one trial in figures
``stats.ratio_interval(baseline, variant) -> Interval | None``    replicates → ratio, interval
``stats.noise_floor(values) -> NoiseFloor | None``                the baseline against itself
``occupancy.occupancy(trial, kv_bytes_per_token=…)``              tokens in flight beside blocks
``ledger.ledger(trial, predicted=…) -> Ledger``                   where the memory went
``verdict.verdicts(trial, summary, peers=…)``                     can the figures be trusted
``compare.analyse(bench, trials) -> Analysis``                    all of it, joined with theory
``compare.to_json(analysis) -> dict``                             the same in plain JSON values
===============================================================  ==============================

The result types are in ``results``. ``metrics`` and ``theory`` never import each other; they
meet in ``compare``.
"""
