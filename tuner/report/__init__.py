"""The report of a study: what won, by how much, how sure that is, and why the others lost."""

import json
from dataclasses import dataclass
from pathlib import Path

from tuner.report.as_json import to_json
from tuner.report.contents import contents
from tuner.report.html import to_html
from tuner.report.markdown import to_markdown
from tuner.report.study_record import read_study
from tuner.report.summary import summarize

__all__ = ["ReportFiles", "write_report"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportFiles:
    """The report in its three forms; each says the same."""

    md: Path
    html: Path
    json: Path


def write_report(folder: Path) -> ReportFiles:
    """Write the report of the study in *folder*, beside its journal, in place of an older one.

    Raises:
        BadInputError: there is no study in this folder.
        JournalError: the journal is not one of ours.
    """
    record = read_study(folder)
    summary = summarize(record.study(), record.history, record.objective.maximize)
    page = contents(record, summary, folder / "plots")
    files = ReportFiles(
        md=folder / "report.md", html=folder / "report.html", json=folder / "report.json"
    )
    _write(files.md, to_markdown(page, folder))
    _write(files.html, to_html(page))
    _write(files.json, json.dumps(to_json(record, summary), indent=1, allow_nan=False) + "\n")
    return files


def _write(path: Path, text: str) -> None:
    """Write all or nothing, so that a reader never sees half a report."""
    new = path.with_name(path.name + ".new")
    new.write_text(text, encoding="utf-8")
    new.replace(path)
