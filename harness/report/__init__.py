"""From stored results to a page: verdict, tables, charts, evidence. Needs no GPU and no network.

``build`` reads a run and writes its page; ``sentence`` says what was found, by rules;
``tables`` turns an analysis into cells of text; ``charts`` draws on ``style``; ``html`` fills the
templates; ``terminal`` prints the short table. Nothing here computes a metric or a verdict.
"""
