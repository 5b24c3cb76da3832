"""Quality on the page: opening, section, charts, and a headline that broken text voids."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import get_args

import pytest
import typer

from harness import store
from harness.analysis.compare import analyse, to_json
from harness.analysis.quality_results import JudgeOutcome, Standing
from harness.analysis.results import Analysis
from harness.cli.outcome import strict_exit
from harness.record import QualityPass, QualityRecords
from harness.report import quality as section_of
from harness.report.build import build_report
from harness.report.quality_text import lead_sentence, standing_brief, standing_sentence
from harness.report.sentence import answer
from harness.units import DASH
from tests import records
from tests.quality.toy import Toy
from tests.quality.toy_records import toy_records
from tests.report.stored import store_run

NOISY = Toy(noise=0.4)
BROKEN = Toy(weights=1)


def analysis(variant: Toy = NOISY, **more: object) -> Analysis:
    return analyse(*records.bench(), toy_records(variant, **more))


def told(found: Analysis) -> str:
    opening = answer(found)
    return " ".join([opening.lead, *map(str, opening.points), *opening.limits])


def test_a_difference_is_told_with_its_floor_and_the_lead_keeps_its_capacity() -> None:
    found = analysis()
    opening = answer(found)
    assert opening.lead.startswith("In the same 112.50 MiB")
    point = next(p for p in opening.points if p.about == "Answers of fp8")
    assert "differ beyond fp16's own noise" in point.text
    assert "floor 0" in point.text
    assert "Answer quality was not measured" not in told(found)


def test_answers_within_the_noise_are_called_indistinguishable() -> None:
    assert "indistinguishable from fp16's own noise" in told(analysis(Toy()))


def test_without_a_second_baseline_nothing_is_called_a_difference() -> None:
    text = told(analysis(with_floor=False))
    assert "without a noise floor" in text
    assert "differ beyond" not in text


def test_broken_text_voids_the_headline_and_every_finding_of_the_variant() -> None:
    found = analysis(BROKEN)
    opening = answer(found)
    assert opening.lead.startswith("The gains of fp8 don't count")
    assert "perplexity" in opening.lead
    fp8 = [f for f in found.headline.findings if f.variant == "fp8"]
    assert fp8
    assert {f.verdict for f in fp8} == {"invalid"}
    assert all("quality_gate" in f.codes for f in fp8)
    assert analysis().headline.findings != found.headline.findings


def test_a_scale_warning_voids_the_headline_and_is_quoted() -> None:
    line = "WARNING Using KV cache scaling factor 1.0 for fp8_e4m3."
    found = analysis(Toy(), log_warnings=(line,))
    assert answer(found).lead.startswith("The gains of fp8 don't count")
    assert line in answer(found).lead


def test_a_pass_that_failed_is_told_with_its_reason() -> None:
    stored = toy_records(NOISY)
    head = QualityPass(
        1, "variant-fp8", "variant", "fp8", "failed", (1,), 1, reverse=False, reason="it died"
    )
    passes = tuple(p for p in stored.passes if p.head.kind != "variant")
    lost = replace(
        stored, passes=(*passes, replace(stored.passes[0], head=head, answers=(), scores=()))
    )
    text = told(analyse(*records.bench(), lost))
    assert "could not be measured: it died" in text


def test_without_answers_nothing_is_said_but_that_they_were_not_measured() -> None:
    found = analyse(*records.bench(), QualityRecords())
    assert found.quality is None
    assert "Answer quality was not measured" in told(found)
    caution = next(c for c in found.cautions if c.code == "quality_unmeasured")
    assert "`--set quality=true`" in caution.text  # `kvbench judge` would find nothing here
    assert "kvbench judge" not in caution.text
    assert "quality_unmeasured" not in {c.code for c in analysis().cautions}


def test_every_figure_is_in_the_json_too() -> None:
    printed = to_json(analysis())["quality"]
    (fp8,) = [v for v in printed["variants"] if v["variant"] == "fp8"]
    assert fp8["standing"] == "differs"
    assert fp8["on_answers"]["kl"]["value"] > 0
    assert printed["baseline_retrieval"]["needles_asked"] == 4


def test_the_section_has_the_floor_as_a_row_and_both_charts() -> None:
    bench, trials = records.bench()
    found = section_of.section(bench, trials, analysis())
    assert found is not None
    rows = [row[0] for row in found.grids[0].rows]
    assert rows == ["fp16 again (noise floor)", "fp8"]
    assert [chart.name for chart in found.charts] == ["quality-kl-by-position", "quality-needles"]
    assert "1/1" in found.charts[1].alt
    assert section_of.section(bench, trials, analyse(bench, trials)) is None


@pytest.mark.parametrize("variant", [NOISY, BROKEN])
def test_the_page_shows_it_and_the_charts_are_written(tmp_path: Path, variant: Toy) -> None:
    bench, trials = records.bench(1)
    run = store_run(bench, trials, tmp_path)
    stored = toy_records(variant)
    store.write_prompts(run, stored.prompts)
    for record in stored.passes:
        store.write_pass(run, record.head)
        for answer_line in record.answers:
            store.answers_file(run, record.head.pass_id).append(answer_line)
        for score_line in record.scores:
            store.scores_file(run, record.head.pass_id).append(score_line)
    assert store.read_quality(run).passes == tuple(
        sorted(stored.passes, key=lambda p: p.head.pass_id)
    )
    paths = build_report(run, reports_root=tmp_path / "reports")
    page = paths.html.read_text()
    assert 'id="quality"' in page
    assert "Sanity gate: is it text at all?" in page
    assert {p.name for p in paths.pngs} >= {"quality-needles.png", "quality-kl-by-position.png"}
    assert ("The gains of fp8 don" in page) is (variant is BROKEN)


def test_hostile_text_of_a_user_stays_text(tmp_path: Path) -> None:
    bench, trials = records.bench(1)
    run = store_run(bench, trials, tmp_path)
    stored = toy_records(NOISY, left_out=("line 2: <script>alert(1)</script>",))
    store.write_prompts(run, stored.prompts)
    for record in stored.passes:
        store.write_pass(run, record.head)
    page = build_report(run, reports_root=tmp_path / "reports").html.read_text()
    assert "<script>alert" not in page
    assert "&lt;script&gt;alert" in page


def test_a_torn_line_is_counted_and_the_next_one_kept(tmp_path: Path) -> None:
    stored = toy_records(NOISY)
    (tmp_path / "run").mkdir()
    run = tmp_path / "run"
    store.write_pass(run, stored.passes[0].head)
    lines = store.answers_file(run, "reference")
    lines.append(stored.passes[0].answers[0])
    with (run / "quality" / "reference" / "answers.jsonl").open("ab") as stream:
        stream.write(b'{"index": 1, "text": "cut o')
    lines.append(stored.passes[0].answers[2])
    found = store.read_quality(run)
    assert [a.index for a in found.passes[0].answers] == [0, 2]
    assert found.damaged_lines == 1


def measured(found: Analysis) -> str:
    bench, trials = records.bench()
    section = section_of.section(bench, trials, found)
    assert section is not None
    return " ".join(map(str, section.measured))


def test_how_many_of_the_prompts_were_asked_is_told() -> None:
    assert "Asked: 6 prompts of the 50 that ship (3 summarise, 3 extract)" in measured(analysis())
    found = analysis()
    assert found.quality is not None
    many = replace(found, quality=replace(found.quality, prompts=60))
    assert "60 prompts of the 50 that ship, some texts asked about more than once (3" in measured(
        many
    )
    assert "; 4 needles." in measured(analysis())


def test_another_server_start_is_claimed_only_where_there_was_one() -> None:
    # In these records reference and floor come from launch 0.
    assert "fp16 against itself (the same server start, reversed order" in measured(analysis())
    stored = toy_records(NOISY)
    passes = tuple(
        replace(p, head=replace(p.head, launches=(3,))) if p.head.kind == "self" else p
        for p in stored.passes
    )
    bench, trials = records.bench()
    found = analyse(bench, trials, replace(stored, passes=passes))
    assert "fp16 against itself (another server start, reversed order" in measured(found)
    # A server that was running already is started by nobody between the trials.
    attached = replace(bench, scenario={**bench.scenario, "attach": "http://host/v1"})
    section = section_of.section(attached, trials, found)
    assert section is not None
    assert "the same server start" in " ".join(map(str, section.measured))


def test_a_difference_is_not_sold_as_a_loss() -> None:
    assert "Different is not yet worse" in measured(analysis())
    assert "Different is not yet worse" not in measured(analysis(Toy()))


def test_a_baseline_whose_own_text_is_broken_is_called_so() -> None:
    stored = toy_records(Toy())
    empty = tuple(
        replace(p, answers=tuple(replace(a, text="", token_ids=(2,)) for a in p.answers))
        for p in stored.passes
    )
    text = measured(analyse(*records.bench(), replace(stored, passes=empty)))
    assert "fp16's own text fails the sanity gate: 100 % of the answers are empty" in text


def test_strict_ends_with_1_on_broken_text_and_names_it(capsys: pytest.CaptureFixture[str]) -> None:
    sound = replace(analysis(), trials=())
    strict_exit(sound)
    with pytest.raises(typer.Exit) as caught:
        strict_exit(replace(analysis(BROKEN), trials=()))
    assert caught.value.exit_code == 1
    assert "invalid (quality_gate): " in capsys.readouterr().err


def test_few_prompts_are_called_few_in_opening_section_and_lead() -> None:
    stored = toy_records(NOISY)
    few = tuple(
        replace(p, scores=p.scores[:3]) if p.head.kind == "variant" else p for p in stored.passes
    )
    found = analyse(*records.bench(), replace(stored, passes=few))
    assert "too few prompts for a claim" in told(found)
    assert "too few prompts for a claim" in measured(found)
    assert found.quality is not None
    assert lead_sentence(found.quality) == "Of fp8 nothing can be claimed."


def test_every_standing_has_its_words() -> None:
    quality = analysis().quality
    assert quality is not None
    (fp8,) = [one for one in quality.variants if one.kind == "variant"]
    for standing in get_args(Standing):
        one = replace(fp8, standing=standing)
        for text in (standing_brief(one, quality), standing_sentence(one, quality)):
            assert text.endswith(".")
        assert lead_sentence(replace(quality, variants=(one,))).endswith(".")


def test_the_lead_names_the_worst_first_and_all_of_them() -> None:
    quality = analysis().quality
    assert quality is not None
    (fp8,) = [one for one in quality.variants if one.kind == "variant"]
    made: list[tuple[str, Standing]] = [
        ("a", "differs"),
        ("b", "differs"),
        ("c", "broken"),
        ("d", "indistinguishable"),
    ]
    variants = tuple(replace(fp8, variant=name, standing=standing) for name, standing in made)
    assert lead_sentence(replace(quality, variants=variants)) == (
        "The text of c fails the sanity gate, so its gains don't count; answers of a and b differ "
        "from fp16's beyond its own noise; d can't be told from fp16's own noise."
    )


def test_a_judge_that_told_half_of_its_tokens_has_no_total() -> None:
    judge = JudgeOutcome(
        judge_id="j",
        model="m",
        is_self=False,
        status="sealed",
        reason=None,
        reliable=True,
        unreliable_because=(),
        controls=(),
        position_bias=None,
        malformed=0,
        questions=1,
        lost=0,
        prompt_tokens=100,
        output_tokens=10,
        wall_s=None,
        margin=0.1,
        variants=(),
    )
    silent = replace(judge, output_tokens=None)
    # 100 + 10 = 110 tokens; 100 of an unknown whole are not told as one.
    assert [row[-2] for row in section_of._judge_grid([judge, silent]).rows] == ["110", DASH]
