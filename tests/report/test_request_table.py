from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

from harness.record import RequestRecord
from harness.report.request_table import MAX_REQUESTS_PAGE, RequestTable, rows_per_trial, table


def many(count: int) -> list[RequestRecord]:
    """Requests a second apart that last a second, but for the one at two thirds, which takes 9."""
    slow = 2 * count // 3
    return [
        RequestRecord(
            index=index,
            phase="measured",
            prompt_tokens_planned=8,
            output_tokens_planned=3,
            planned_send_s=float(index),
            sent_s=float(index),
            first_chunk_s=index + 0.5,
            last_chunk_s=index + (9.0 if index == slow else 1.0),
            finished_s=index + 9.0,
            prompt_tokens=8,
            output_tokens=3,
            finish_reason="length",
            text="an answer",
        )
        for index in range(count)
    ]


def shown(found: RequestTable) -> list[int]:
    return [int(line.index.value) for line in found.lines]


def test_all_are_shown_where_they_fit() -> None:
    found = table(many(7), 7)
    assert shown(found) == list(range(7))
    assert found.is_whole
    assert found.told == "All 7 requests, in order of sending."


def test_a_selection_says_how_many_of_how_many_and_what_statistics_come_from() -> None:
    found = table(many(2000), 12)
    assert len(found.lines) == 12
    assert not found.is_whole
    assert found.told.startswith("12 of 2,000 requests: the 2 slowest each by TTFT")
    assert "every statistic of this page is of all requests" in found.told


def test_the_slowest_of_all_is_among_those_shown() -> None:
    assert 2 * 2000 // 3 in shown(table(many(2000), 12))


def test_the_rest_is_spread_over_the_whole_time() -> None:
    places = shown(table(many(2000), 60))
    assert places[0] == 0
    assert places[-1] == 1999
    assert max(later - earlier for earlier, later in pairwise(places)) < 80


def test_those_that_failed_are_shown_up_to_half_and_counted() -> None:
    requests = [
        replace(request, error="boom") if request.index % 10 == 0 else request
        for request in many(1000)
    ]
    found = table(requests, 40)
    assert [line.ended for line in found.lines].count("boom") == 20
    assert "20 of the 100 that failed" in found.told


def test_a_figure_has_its_value_for_sorting_and_the_unknown_has_none() -> None:
    sent, ttft, tpot, e2el, prompt, output = table(many(2)[:1], 1).lines[0].figures
    assert (sent.text, sent.value) == ("0.0 ms", "0")
    assert (ttft.text, ttft.value) == ("500.0 ms", "0.5")
    # Two gaps in half a second: 250 ms.
    assert (tpot.text, tpot.value) == ("250.0 ms", "0.25")
    assert (e2el.text, prompt.value, output.value) == ("1.00 s", "8", "3")
    unknown = replace(many(2)[0], first_chunk_s=None, output_tokens=None)
    figures = table([unknown], 1).lines[0].figures
    assert [(f.text, f.value) for f in (figures[1], figures[5])] == [("—", ""), ("—", "")]


def test_a_page_of_many_trials_shows_fewer_of_each() -> None:
    assert rows_per_trial(1) == 150
    assert rows_per_trial(100) * 100 == MAX_REQUESTS_PAGE
    assert rows_per_trial(10**6) == 1
    assert len(table(many(100), 1).lines) == 1
