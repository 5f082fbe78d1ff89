"""The report: who won, how sure that is, and what is said when nobody did."""

import json
import math
import re
import shutil
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from objectives import Interval, Limit, Margin
from runners import Faulted, Rejected
from runners.records import write_records
from search_spaces import Value
from tests.study_factory import (
    OUT_OF_MEMORY,
    Step,
    infeasible_steps,
    measured,
    rejected_steps,
    spec,
    usual_steps,
    write_study,
)
from tuner.bad_input import BadInputError
from tuner.journal import Closed, History, Journal, Opened
from tuner.report import ReportFiles, write_report
from tuner.report.as_json import to_json
from tuner.report.conclusions import command_section
from tuner.report.evidence import environment_section, trials_section
from tuner.report.html import to_html
from tuner.report.latencies import read_latencies
from tuner.report.markdown import to_markdown
from tuner.report.page import Code, Listing, Page, Paragraph, Section, Table
from tuner.report.study_record import StudyRecord, read_study
from tuner.report.summary import (
    Comparison,
    Summary,
    is_finished,
    overlap,
    summarize,
    surely_kept,
)
from tuner.report.verdict import watermark
from tuner.report.words import label, number, with_interval, with_unit
from tuner.study_file import StudyFile

GOOD: dict[str, Value] = {
    "schedule_policy": "lpm",
    "max_running_requests": 192,
    "token_budget": 2048,
}
SLOW: dict[str, Value] = {"schedule_policy": "fcfs", "max_running_requests": 32}
QUICK = 40  # requests with records; enough for a picture


class Text(HTMLParser):
    """Collects the visible text and the tags of a page, and what it loads."""

    def __init__(self) -> None:
        super().__init__()
        self.text, self.tags, self.loads = "", set[str](), list[str]()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.loads += [value or "" for name, value in attrs if name in {"src", "href"}]

    def handle_data(self, data: str) -> None:
        self.text += data


def read(folder: Path) -> tuple[StudyRecord, Summary]:
    record = read_study(folder)
    return record, summarize(record.study(), record.history, record.objective.maximize)


def judged(folder: Path, steps: list[Step], **more: Any) -> dict[str, Any]:
    """Return what the report for machines says, without drawing anything."""
    return to_json(*read(write_study(folder, steps, requests=QUICK, **more)))


def cells(section: Section) -> set[str]:
    tables = [block for block in section.blocks if isinstance(block, Table)]
    return {cell for table in tables for row in table.rows for cell in row}


@pytest.fixture(scope="module")
def usual(tmp_path_factory: pytest.TempPathFactory) -> ReportFiles:
    """An emulated study of 14 launches with every kind of outcome, reported once."""
    steps = [*usual_steps(13), Step(stage="capacity", values=GOOD)]
    steps[12] = Step(stage="capacity", values=steps[12].values, lost=True)
    folder = tmp_path_factory.mktemp("reports") / "usual"
    write_study(folder, steps, requests=QUICK, emulated=True)
    shutil.rmtree(folder / "launches" / "001")  # as a crash may leave it
    return write_report(folder)


def test_the_winner_is_the_fastest_that_keeps_every_limit(usual: ReportFiles) -> None:
    """Launches with more throughput that break a limit do not win."""
    said = json.loads(usual.json.read_text(encoding="utf-8"))
    feasible = [t for t in said["trials"] if t["feasible"]]
    assert said["verdict"] == "found"
    assert said["winner"]["value"] == max(t["value"] for t in feasible)
    assert said["winner"]["number"] in [t["number"] for t in feasible]
    assert {t["state"] for t in said["trials"]} >= {"feasible", "infeasible", "rejected"}
    assert said["lost"] == [12]


def test_the_winners_command_is_the_one_that_was_launched(usual: ReportFiles) -> None:
    """What is offered for pasting is what started the winning launch, word for word."""
    winner = json.loads(usual.json.read_text(encoding="utf-8"))["winner"]
    launched = usual.json.parent / "launches" / f"{winner['number']:03d}" / "launch.txt"
    assert winner["command"] == launched.read_text(encoding="utf-8").strip()
    assert winner["command"] in usual.md.read_text(encoding="utf-8")
    assert winner["flags"][0].startswith("--")


def test_all_three_forms_say_the_same_verdict(usual: ReportFiles) -> None:
    """Nobody reads another verdict in another file."""
    says = json.loads(usual.json.read_text(encoding="utf-8"))["says"]
    page = Text()
    page.feed(usual.html.read_text(encoding="utf-8"))
    assert says in usual.md.read_text(encoding="utf-8")
    assert says in page.text


def test_the_page_needs_no_network_and_no_script(usual: ReportFiles) -> None:
    """Every picture is inside the file, and nothing is fetched."""
    page = Text()
    page.feed(usual.html.read_text(encoding="utf-8"))
    assert page.loads
    assert all(load.startswith("data:image/png;base64,") for load in page.loads)
    assert page.tags.isdisjoint({"script", "link", "iframe"})
    assert "@import" not in usual.html.read_text(encoding="utf-8")


def test_every_launch_and_every_knob_is_in_the_report(usual: ReportFiles) -> None:
    """Failed and lost launches are listed beside the others, with their reasons."""
    text = usual.md.read_text(encoding="utf-8")
    rows = re.findall(
        r"^\| (?:\*\*)?(\d+)(?:\*\*)? \| \S.*$", text.split("## All launches")[1], re.M
    )
    assert sorted({int(row) for row in rows}) == list(range(14))
    assert OUT_OF_MEMORY in text
    assert "| lost |" in text
    plots = {p.name for p in (usual.md.parent / "plots").glob("*.png")}
    for knob in ("schedule_policy", "max_running_requests", "token_budget", "mem_fraction_static"):
        assert f"output_tokens_per_s_by_{knob}.png" in plots
        assert f"tpot_p95_ms_by_{knob}.png" in plots


def test_each_linked_picture_exists(usual: ReportFiles) -> None:
    """The Markdown links no picture that was not drawn."""
    links = re.findall(r"!\[[^]]*\]\(([^)]+)\)", usual.md.read_text(encoding="utf-8"))
    assert len(links) > 10
    assert [link for link in links if not (usual.md.parent / link).is_file()] == []


def test_a_setting_that_came_out_otherwise_is_named(tmp_path: Path) -> None:
    """A clamped knob is shown as asked and as run."""
    asked = {"max_running_requests": 384, "mem_fraction_static": 0.7}
    said = judged(tmp_path / "s", [Step(stage="baseline"), Step(stage="c", values=asked)])
    assert said["trials"][1]["changed"] == ["max_running_requests: asked 384, ran 210"]


def test_nothing_is_crowned_when_no_setting_keeps_the_limits(tmp_path: Path) -> None:
    """The nearest is shown with the limit that binds, no command is offered, nobody wins."""
    folder = write_study(tmp_path / "s", infeasible_steps(), ttft_limit_ms=900.0)
    record, summary = read(folder)
    said = to_json(record, summary)
    assert said["verdict"] == "infeasible"
    assert said["winner"] is None
    assert said["nearest"]["number"] in {0, 1, 2}
    assert "there is no winner" in said["says"]
    assert "TTFT p95 is" in said["says"]
    assert command_section(record, summary).blocks == ()


def test_the_nearest_breaks_its_limits_least(tmp_path: Path) -> None:
    """Of two infeasible settings the one with the smaller violation is the nearest."""
    steps = [Step(stage="baseline", values=SLOW), Step(stage="c", values=GOOD)]
    said = judged(tmp_path / "s", steps, ttft_limit_ms=1000.0)
    assert said["verdict"] == "infeasible"
    assert said["nearest"]["number"] == 1


def test_a_study_in_which_nothing_ran_says_why(tmp_path: Path) -> None:
    """The reason of the rejections is in the first sentence."""
    folder = write_study(tmp_path / "s", rejected_steps())
    files = write_report(folder)
    said = json.loads(files.json.read_text(encoding="utf-8"))
    assert said["verdict"] == "nothing ran"
    assert OUT_OF_MEMORY in said["says"]
    assert said["failures"] == [
        {"state": "rejected", "reason": OUT_OF_MEMORY, "numbers": [0, 1, 2]}
    ]
    assert files.html.exists()


def test_a_study_without_a_launch_is_unfinished(tmp_path: Path) -> None:
    """An empty journal is reported without a crash and without a claim."""
    said = judged(tmp_path / "s", [], closed=False)
    assert said["verdict"] == "unfinished"
    assert "0 launches ended" in said["says"]


def test_a_study_on_its_way_has_a_best_so_far_but_no_verdict(tmp_path: Path) -> None:
    """A running study is not called found, and its pending launch is listed."""
    steps = [Step(stage="baseline"), Step(stage="c", values=GOOD), Step(stage="c", pending=True)]
    record, summary = read(write_study(tmp_path / "s", steps, closed=False))
    said = to_json(record, summary)
    assert said["verdict"] == "unfinished"
    assert said["pending"] == [2]
    assert "Best so far: launch 1" in said["says"]
    assert "on its way" in cells(trials_section(record, summary))


def test_an_emulated_study_is_marked_in_every_form(usual: ReportFiles, tmp_path: Path) -> None:
    """No figure of an emulated engine can be taken for a measurement; a real one is not marked."""
    mark = "EMULATED: no figure here is a measurement of real hardware"
    for file in (usual.md, usual.html, usual.json):
        assert mark in file.read_text(encoding="utf-8")
    record, _ = read(write_study(tmp_path / "real", [Step(stage="baseline")]))
    assert watermark(record) is None


def test_a_win_inside_the_intervals_is_called_a_tie(tmp_path: Path) -> None:
    """A higher figure whose interval overlaps the defaults' is no gain."""
    near = {**GOOD, "max_running_requests": 224}
    steps = [Step(stage="baseline", values=GOOD), Step(stage="c", values=near)]
    said = judged(tmp_path / "s", steps)
    assert said["winner"]["number"] == 1
    assert said["comparison"][0]["standing"] == "tie"
    assert "tie with the engine's defaults" in said["says"]


def test_a_winner_that_failed_when_measured_again_is_doubted(tmp_path: Path) -> None:
    """The same setting that broke a limit another time is said in the verdict."""
    slow = measured(GOOD, 5, ttft_p95_ms=9000.0)
    steps = [Step(stage="c", values=GOOD), Step(stage="c", values=GOOD, outcome=slow)]
    said = judged(tmp_path / "s", steps)
    assert said["winner"]["number"] == 0
    assert said["winner_measured_again"] == [1]
    assert "the same setting broke a limit (launch 1)" in said["says"]


def test_infinite_and_missing_figures_are_told_apart(tmp_path: Path) -> None:
    """A timed-out tail is infinite in words and in JSON; a missing figure is a dash and null."""
    endless = measured(SLOW, 1, ttft_p95_ms=math.inf, intervals={}, prefix_cache_hit_rate=None)
    folder = write_study(tmp_path / "s", [Step(stage="baseline", outcome=endless)])
    record, summary = read(folder)
    said = to_json(record, summary)
    assert said["trials"][0]["metrics"]["ttft_p95_ms"] == "inf"
    assert "prefix_cache_hit_rate" not in said["trials"][0]["metrics"]
    comparison = next(c for c in summary.comparisons if c.metric == "ttft_p95_ms")
    assert with_interval(comparison.winner, comparison.winner_interval) == "infinite"


def test_files_that_a_crash_left_out_or_cut_do_not_stop_the_report(tmp_path: Path) -> None:
    """A launch without its files is reported from the journal alone."""
    folder = write_study(tmp_path / "s", [Step(stage="baseline", values=GOOD)], requests=QUICK)
    launch = folder / "launches" / "000"
    (launch / "launch.txt").unlink()
    (folder / "environment.json").write_text('{"machine": {', encoding="utf-8")
    records = launch / "requests.jsonl"
    records.write_bytes(records.read_bytes()[:-100])
    record, summary = read(folder)
    assert to_json(record, summary)["winner"]["command"] is None
    (facts,) = environment_section(record).blocks
    assert isinstance(facts, Listing)
    assert "No snapshot of the environment was found" in facts.items
    latencies = read_latencies(launch)
    assert latencies is not None
    assert len(latencies.ttft_ms) == QUICK - 10 - 1  # warm-up and the one cut in half
    faster = read_latencies(launch, speed=10.0)
    assert faster is not None
    assert faster.ttft_ms[0] == pytest.approx(10 * latencies.ttft_ms[0])
    records.unlink()
    assert read_latencies(launch) is None


def test_a_launch_without_successes_has_no_latencies(tmp_path: Path) -> None:
    """Records of nothing but warm-up give no picture."""
    write_records(tmp_path / "requests.jsonl", [])
    assert read_latencies(tmp_path) is None


def test_a_folder_without_a_study_is_refused(tmp_path: Path) -> None:
    """The message names the file that is missing."""
    with pytest.raises(BadInputError, match=r"journal\.jsonl"):
        write_report(tmp_path)


def test_what_an_engine_says_is_never_markup(tmp_path: Path) -> None:
    """A reason with tags and bars is shown as text in both forms."""
    nasty = "<script>alert(1)</script> | broken\nrow"
    steps = [Step(stage="baseline", outcome=Rejected(reason=nasty))]
    files = write_report(write_study(tmp_path / "s", steps))
    page = Text()
    page.feed(files.html.read_text(encoding="utf-8"))
    assert "script" not in page.tags
    text = files.md.read_text(encoding="utf-8")
    assert re.search(r"(?<!\\)</?script>", text) is None
    assert r"alert(1)\</script> \| broken row" in text


def test_a_report_can_be_written_again(tmp_path: Path) -> None:
    """The second report takes the place of the first and leaves no half files."""
    folder = write_study(tmp_path / "s", rejected_steps(), requests=QUICK)
    first = write_report(folder).md.read_text(encoding="utf-8")
    assert write_report(folder).md.read_text(encoding="utf-8") == first
    assert list(folder.glob("*.new")) == []


def interval(low: float | None, high: float | None) -> Interval:
    return Interval(low=low, high=high, confidence=0.95, method="made up")


@pytest.mark.parametrize(
    ("metric", "ends", "standing"),
    [
        ("output_tokens_per_s", ((90, 110), (115, 125)), "better"),
        ("output_tokens_per_s", ((90, 116), (115, 125)), "tie"),
        ("ttft_p95_ms", ((90, 110), (115, 125)), "worse"),
        ("ttft_p95_ms", ((90, None), (115, 125)), "not known"),
    ],
)
def test_a_difference_counts_only_outside_the_intervals(
    metric: str, ends: tuple[tuple[float, float], tuple[float, float]], standing: str
) -> None:
    """More is better for throughput and worse for latency, and overlap is a tie."""
    comparison = Comparison(
        metric=metric,
        baseline=100.0,
        winner=120.0,
        baseline_interval=interval(*ends[0]),
        winner_interval=interval(*ends[1]),
    )
    assert comparison.standing == standing
    assert comparison.change == pytest.approx(0.2)


def test_without_intervals_nothing_is_claimed() -> None:
    """A bare difference is not called better; an infinite one has no percentage."""
    assert Comparison(metric="ttft_p95_ms", baseline=1.0, winner=2.0).standing == "not known"
    assert Comparison(metric="ttft_p95_ms", baseline=1.0, winner=math.inf).change is None
    assert overlap(interval(None, None), interval(3, 4))
    assert not overlap(interval(1, 2), interval(3, 4))


def test_a_limit_is_surely_kept_by_the_whole_interval_only() -> None:
    """A figure below the limit with an interval that crosses it is kept, but not surely."""
    measurement = measured(GOOD, 0, ttft_p95_ms=950.0).measurement
    limit = Limit(metric="ttft_p95_ms", at_most=1000.0)
    margin = Margin(limit=limit, value=950.0, relative=-0.05)
    intervals = {"ttft_p95_ms": interval(900, 1010)}
    crossing = measured(GOOD, 0, ttft_p95_ms=950.0, intervals=intervals).measurement
    assert surely_kept(margin, crossing) is False
    assert surely_kept(margin, measured(GOOD, 0, intervals={}).measurement) is None
    open_ended = measured(GOOD, 0, intervals={"ttft_p95_ms": interval(900, None)}).measurement
    assert surely_kept(margin, open_ended) is None
    assert surely_kept(Margin(limit=limit, value=1.0, relative=-1), measurement) is False


@pytest.mark.parametrize(
    ("verdict", "finished"), [("found", True), ("interrupted", False), ("faulted", False)]
)
def test_only_a_study_that_came_to_its_end_is_finished(*, verdict: str, finished: bool) -> None:
    """An interrupted or faulted study will be taken up again."""
    assert (
        is_finished(history(Closed(at="2026-11-30T09:00", verdict=verdict, reason=""))) is finished
    )
    assert not is_finished(history(None))


def test_a_machine_that_failed_from_the_start_ran_nothing(tmp_path: Path) -> None:
    """A lasting fault ends the study with its reason as the verdict."""
    folder = write_study(
        tmp_path / "s",
        [Step(stage="baseline", outcome=Faulted(reason="no GPU is free", lasting=True))],
        closed=False,
    )
    with Journal(folder / "journal.jsonl") as journal:
        journal.closed(Closed(at="2026-11-30T12:00", verdict="faulted", reason="no GPU is free"))
    _, summary = read(folder)
    assert summary.verdict == "nothing ran"
    assert summary.failures[0].reason == "no GPU is free"


def history(closed: Closed | None) -> History:
    opened = Opened(
        study_id="a", at="", spec={}, workload_sha256="", prefix_sharing=0, tuner_version=""
    )
    return History(opened=opened, trials=(), lost=(), dropped=(), pending=(), closed=closed)


def test_the_made_up_study_file_is_a_valid_one() -> None:
    """The factory writes what a user could have written."""
    assert StudyFile.model_validate_json(json.dumps(spec("s"))).study.name == "s"


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, "–"), (math.inf, "infinite"), (0.0, "0"), (5310.4, "5,310"), (0.01234, "0.0123")],  # noqa: RUF001
)
def test_numbers_have_as_many_digits_as_they_deserve(value: float | None, text: str) -> None:
    """Absent is a dash, never 0."""
    assert number(value) == text


def test_metrics_have_names_and_units_for_people() -> None:
    """Units come from the metric's own name."""
    assert with_unit("ttft_p95_ms") == "TTFT p95 (ms)"
    assert with_unit("output_tokens_per_s") == "Throughput (tokens/s)"
    assert with_unit("gpu_memory_peak_gib") == "GPU memory peak (GiB)"
    assert label("retractions") == "Retractions"
    assert with_interval(10.0, interval(9, None)) == "10 [9; ?]"


def test_blocks_look_alike_in_both_forms(tmp_path: Path) -> None:
    """Each kind of block is written in Markdown and in HTML, and code keeps its backticks."""
    blocks = (
        Paragraph("one & two"),
        Listing(("first", "second")),
        Code("run ```x```"),
        Table(("a", "b"), (("1", "x|y"),), emphasised=0),
    )
    page = Page(
        title="T", watermark="W", verdict="V", subtitle="S", sections=(Section("H", blocks),)
    )
    md, html = to_markdown(page, tmp_path), to_html(page)
    assert "````\nrun ```x```\n````" in md
    assert r"| **1** | **x\|y** |" in md
    assert "one &amp; two" in html
    assert '<tr class="emphasised"><td>1</td><td>x|y</td></tr>' in html
