"""What the installed engine's account of its flags means for a study: problems, and notes."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from runners.flag_probe import Words
from runners.flag_words import word_problems
from runners.installed_flags import Account, Refusal

BASELINE = "engine.flags"
# Refusals that this machine may cause at this moment, whatever the setting.
OF_THE_MACHINE = re.compile(
    r"out of memory|(enough|available|free) memory|no accelerator|no gpu|nvidia-smi", re.IGNORECASE
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What would make every launch fail or cannot be meant, and what is only worth knowing."""

    problems: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def judge(account: Account, settings: Mapping[str, Words], *, runs_here: bool = True) -> Verdict:
    """Judge the command lines of named *settings*, of which the first is the baseline.

    A launch that does not *run here* may find another engine: its refusals are notes.
    """
    if wrong := tuple(_wrong_words(account, settings)):
        return Verdict(problems=wrong)
    refusals = _first_of_each(account, settings)
    problems = tuple(
        f"{name}: {account.engine} refuses it: {refusal.text.rstrip('.')}"
        for name, refusal in refusals.items()
        if _stops(name, refusal, runs_here=runs_here)
    )
    notes = tuple(
        _note(name, account.engine, refusal)
        for name, refusal in refusals.items()
        if not _stops(name, refusal, runs_here=runs_here)
    )
    return Verdict(problems=problems, notes=notes)


def _wrong_words(account: Account, settings: Mapping[str, Words]) -> Iterator[str]:
    said: set[str] = set()
    for name, words in settings.items():
        for problem in word_problems(account.options, words):
            if problem not in said:
                yield f"{name}: {problem}"
            said.add(problem)


def _first_of_each(account: Account, settings: Mapping[str, Words]) -> dict[str, Refusal]:
    """Return each refusal once, with the first setting that met it."""
    found: dict[Refusal, str] = {}
    for name, words in settings.items():
        refusal = account.answers.get(words)
        if refusal is not None:
            found.setdefault(refusal, name)
    return {name: refusal for refusal, name in found.items()}


def _stops(name: str, refusal: Refusal, *, runs_here: bool) -> bool:
    if refusal.by_parser:
        return True
    return name == BASELINE and runs_here and not OF_THE_MACHINE.search(refusal.text)


def _note(name: str, engine: str, refusal: Refusal) -> str:
    if OF_THE_MACHINE.search(refusal.text):
        return f"{name}: {engine} cannot run it on this machine now: {refusal.text}"
    then = "" if name == BASELINE else "; the search will learn this as infeasible"
    return f"{name}: {engine} refuses it: {refusal.text.rstrip('.')}{then}"
