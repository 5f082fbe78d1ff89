"""The diagnosis of real log tails, each in a file that says where it is from and what it means."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from runners import diagnosis as diagnosis_module
from runners import diagnosis_rules, ending, machine_rules, memory_verdicts, verdicts
from runners.cause import Cause, Direction
from runners.diagnosis import Ending, diagnose, never_ready
from runners.errors import CandidateRejectedError, MachineFaultError, RunnerError
from search_spaces.sglang import KNOBS

FOLDER = Path(__file__).parent / "log_tails"
KEYS = {"engine", "source", "exit", "outcome", "cause", "says"}
MAY = {"ready", "oom_kills", "directions"}


@dataclass(frozen=True)
class Tail:
    """A log tail, and what the lines at its head say of it."""

    words: Mapping[str, str]
    log: str

    def verdict(self) -> RunnerError:
        if self.words["exit"] == "none":
            return never_ready(self.log, 900)
        return diagnose(
            Ending(
                exit_code=int(self.words["exit"]),
                log=self.log,
                ready=self.words.get("ready") == "yes",
                oom_kills=int(self.words.get("oom_kills", "0")),
            )
        )

    def directions(self) -> dict[str, str]:
        words = filter(None, self.words.get("directions", "").split(", "))
        return {knob: way for way, knob in (word.split() for word in words)}


def read(path: Path) -> Tail:
    head: dict[str, str] = {}
    log: list[str] = []
    for line in path.read_text(encoding="utf-8").splitlines():
        if not log and line.startswith("# "):
            key, _, value = line[2:].partition(": ")
            head[key] = value
        else:
            log.append(line)
    assert set(head) >= KEYS, f"{path.name} must say {KEYS - set(head)}"
    assert set(head) <= KEYS | MAY, f"{path.name} must not say {set(head) - KEYS - MAY}"
    return Tail(head, "\n".join(log) + "\n")


TAILS = {path.stem: read(path) for path in sorted(FOLDER.glob("*.txt"))}


def outcome(verdict: RunnerError) -> str:
    if isinstance(verdict, CandidateRejectedError):
        return "rejected"
    assert isinstance(verdict, MachineFaultError)
    return "stop" if verdict.lasting else "retry"


def cause_of(verdict: RunnerError) -> Cause:
    assert isinstance(verdict, CandidateRejectedError | MachineFaultError)
    return verdict.cause


def directions_of(verdict: RunnerError) -> dict[str, Direction]:
    return verdict.directions if isinstance(verdict, CandidateRejectedError) else {}


@pytest.mark.parametrize("name", TAILS)
def test_a_log_tail_means_what_its_head_says(name: str) -> None:
    """Outcome, cause, directions and sentence, for what engines really print as they die."""
    tail = TAILS[name]
    verdict = tail.verdict()
    assert tail.words["says"] in str(verdict)
    assert outcome(verdict) == tail.words["outcome"]
    assert cause_of(verdict) is Cause[tail.words["cause"]]
    assert directions_of(verdict) == tail.directions()


@pytest.mark.parametrize("name", TAILS)
def test_a_reason_is_one_sentence(name: str) -> None:
    """A reason fits a line of a table, whatever the engine printed."""
    reason = str(TAILS[name].verdict())
    assert reason == reason.strip()
    assert "\n" not in reason
    assert len(reason) < 500
    assert "{}" not in reason


def test_directions_name_knobs() -> None:
    """A search can follow each direction: by a knob of the table, or by a flag."""
    named = {knob for tail in TAILS.values() for knob in directions_of(tail.verdict())}
    assert named
    assert all(knob in KNOBS or knob.startswith("--") for knob in named)


def test_a_sentence_names_each_knob_of_its_directions() -> None:
    """What the search is told, people are told too."""
    for tail in TAILS.values():
        verdict = tail.verdict()
        for knob in directions_of(verdict):
            assert knob in str(verdict)


def test_every_cause_of_the_diagnosis_has_a_log_tail() -> None:
    """No cause is only claimed: each was met in a log."""
    modules = (diagnosis_module, diagnosis_rules, ending, machine_rules, memory_verdicts, verdicts)
    sources = (Path(str(module.__file__)).read_text(encoding="utf-8") for module in modules)
    named = {Cause[word] for text in sources for word in re.findall(r"\bCause\.([A-Z_]+)", text)}
    met = {cause_of(tail.verdict()) for tail in TAILS.values()}
    assert named - met == set()
    assert met - named <= {Cause.UNKNOWN}
