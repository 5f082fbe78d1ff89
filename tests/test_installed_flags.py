"""Asking the installed engine about flags: a made-up SGLang in a real interpreter, and ours."""

import os
import sys
from pathlib import Path

import pytest

from runners.flag_check import BASELINE, judge
from runners.flag_words import Option, word_problems
from runners.installed_flags import Account, NotAsked, NotInstalled, Refusal, argument_list, ask
from runners.spec import EngineSpec
from search_spaces import Candidate
from tests import fake_sglang

OPTIONS = (
    Option(names=("--tp-size", "--tensor-parallel-size"), values="one", type="int"),
    Option(names=("--schedule-policy",), values="one", type="str", choices=("fcfs", "lpm")),
    Option(names=("--disable-radix-cache",), values="none", type="str"),
    Option(names=("--graph-bs-decode",), values="some", type="int"),
    Option(names=("--graph-bs-prefill",), values="some", type="int"),
    Option(names=("--stream-interval",), values="one", type="int"),
    Option(names=("--share",), values="one", type="float"),
)


def sglang(python: Path, *flags: str) -> EngineSpec:
    words = (str(python), "-m", "sglang.launch_server")
    return EngineSpec(kind="sglang", model="/m", command=words, flags=flags)


def asked(engine: EngineSpec, cache: Path, **more: str) -> Account:
    """Ask about the engine's fixed flags."""
    words = argument_list(engine, Candidate.of({}))
    found = ask(engine, [words], environment={**os.environ, **more}, cache=cache)
    assert isinstance(found, Account), found
    return found


def answer(engine: EngineSpec, cache: Path, **more: str) -> Refusal | None:
    account = asked(engine, cache, **more)
    return account.answers[argument_list(engine, Candidate.of({}))]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--max-num-batched-tokens", "1"], "SGLang has --chunked-prefill-size"),
        (["--radix-trees"], "--disable-radix-cache turns it off"),
        (["--disable-radix"], "write the flag in full: --disable-radix-cache"),
        (["--graph-bs=1"], "in full: --graph-bs-decode or --graph-bs-prefill"),
        (["--stream-intervall", "1"], "did you mean --stream-interval?"),
        (["--schedule-policy", "banana"], "must be one of fcfs, lpm, found 'banana'"),
        (["--tp-size=two"], "--tp-size must be a whole number, found 'two'"),
        (["--tp-size"], "--tp-size takes one value, found none"),
        (["--share", "nan"], "--share must be a number, found 'nan'"),
        (["--disable-radix-cache", "1"], "takes no value, found '1'"),
        (["--graph-bs-decode", "1", "2", "x"], "must be a whole number, found 'x'"),
    ],
)
def test_a_word_the_engine_does_not_have_is_named_with_the_right_one(
    words: list[str], says: str
) -> None:
    """Each wrong word becomes one sentence that says what to write."""
    (problem,) = word_problems(OPTIONS, words)

    assert says in problem


def test_words_the_engine_has_are_no_problem() -> None:
    """Aliases, '=' and several or negative values are all in order."""
    words = ["--tensor-parallel-size=2", "--graph-bs-decode", "1", "2", "--stream-interval", "-1"]

    assert word_problems(OPTIONS, [*words, "--disable-radix-cache"]) == []


def test_the_installed_engine_is_asked_once(tmp_path: Path) -> None:
    """A second question about the same engine and flags starts no import of it."""
    python = fake_sglang.install(tmp_path)
    first = asked(sglang(python), tmp_path / "cache")
    second = asked(sglang(python), tmp_path / "cache")

    assert first == second
    assert first.engine == "SGLang 9.9"
    assert "--prefill-decode-interval" in {name for o in first.options for name in o.names}
    assert fake_sglang.imports(python) == 1


def test_another_installed_engine_is_asked_anew(tmp_path: Path) -> None:
    """What decides the flags has changed: the kept answers are void."""
    python = fake_sglang.install(tmp_path)
    asked(sglang(python), tmp_path / "cache")
    os.utime(tmp_path / "site" / "sglang" / "srt" / "server_args.py", (1, 1))
    asked(sglang(python), tmp_path / "cache")

    assert fake_sglang.imports(python) == 2


def test_half_a_cache_file_is_asked_anew(tmp_path: Path) -> None:
    """A cache that cannot be read costs time, never the answer."""
    python = fake_sglang.install(tmp_path)
    whole = asked(sglang(python), tmp_path / "cache")
    (kept,) = (tmp_path / "cache").iterdir()
    kept.write_text(kept.read_text()[:100])

    assert asked(sglang(python), tmp_path / "cache") == whole


def test_wrong_words_need_no_second_import(tmp_path: Path) -> None:
    """With the table of options at hand, a misspelt flag is known without the engine."""
    python = fake_sglang.install(tmp_path)
    asked(sglang(python), tmp_path / "cache")
    misspelt = asked(sglang(python, "--disable-radix"), tmp_path / "cache")

    assert misspelt.answers == {}
    assert fake_sglang.imports(python) == 1


def test_each_answer_is_the_engines_own_and_untouched_by_the_others(tmp_path: Path) -> None:
    """Refusals of parser and checks are told apart; what one answer sets, the next never sees."""
    engine = sglang(fake_sglang.install(tmp_path))
    base = argument_list(engine, Candidate.of({}))
    negative = (*base, "--prefill-decode-interval", "-1")
    unparsable = (*base, "--max-running-requests", "abc")
    found = ask(
        engine,
        [base, negative, unparsable],
        environment=dict(os.environ),
        cache=tmp_path / "cache",
    )

    assert isinstance(found, Account)
    assert found.answers[base] is None
    assert found.answers[negative] == Refusal(
        kind="AssertionError", text="interval must be non-negative"
    )
    parser = found.answers[unparsable]
    assert parser is not None
    assert parser.by_parser
    assert parser.text == "argument --max-running-requests: invalid int value: 'abc'"


def test_what_the_machine_lacks_today_is_not_remembered(tmp_path: Path) -> None:
    """A refusal for want of a GPU is asked again: the GPU may be back."""
    engine = sglang(fake_sglang.install(tmp_path))
    first = answer(engine, tmp_path / "cache", NO_GPU="1")

    assert first is not None
    assert first.text.startswith("No accelerator")
    assert answer(engine, tmp_path / "cache") is None


def test_an_interpreter_without_sglang_says_so(tmp_path: Path) -> None:
    """No launch could work: that is a finding, not a failure to ask."""
    found = ask(sglang(Path(sys.executable)), [], environment={}, cache=tmp_path)

    assert found == NotInstalled(f"{sys.executable} has no SGLang installed")


def test_a_silent_engine_is_given_up_after_a_while(tmp_path: Path) -> None:
    """A probe that hangs or dies is a reason in words, never an error."""
    hanging = fake_sglang.install(tmp_path / "a", "import time; time.sleep(60)")
    dying = fake_sglang.install(tmp_path / "b", "raise ImportError('no libcuda')")
    cache, outer = tmp_path / "cache", dict(os.environ)

    slow = ask(sglang(hanging), [], environment=outer, cache=cache, timeout_s=0.5)
    dead = ask(sglang(dying), [], environment=outer, cache=cache)

    assert slow == NotAsked(f"{hanging} did not answer within 0.5 s")
    assert isinstance(dead, NotAsked)
    assert "ImportError: no libcuda" in dead.reason


def test_any_other_command_line_is_not_asked(tmp_path: Path) -> None:
    """Nobody knows what a container or a script would take."""
    engine = EngineSpec(kind="sglang", model="m", command=("docker", "run", "image"))
    found = ask(engine, [], environment={}, cache=tmp_path)

    assert isinstance(found, NotAsked)
    assert "engine.command is docker run image" in found.reason


def test_the_emulated_engine_answers_in_process(tmp_path: Path) -> None:
    """Its own parser and checks speak; a want of memory is left to the launch."""
    engine = EngineSpec(kind="emulated", model="Llama-3.1-8B", hardware="A100-80G")
    refused = engine.model_copy(update={"flags": ("--schedule-conservativeness", "-1")})
    starved = engine.model_copy(update={"flags": ("--mem-fraction-static", "0.05")})
    found = answer(refused, tmp_path)

    assert found is not None
    assert "schedule_conservativeness must be non-negative" in found.text
    assert answer(engine, tmp_path) is None
    assert answer(starved, tmp_path) is None


WORDS: dict[str, tuple[str, ...]] = {
    BASELINE: ("--tp-size", "1"),
    "tp=2": ("--tp-size", "2"),
    "tp=3": ("--tp-size", "3"),
}


def judged(*refusals: Refusal | None, runs_here: bool = True) -> tuple[list[str], list[str]]:
    answers = dict(zip(WORDS.values(), refusals, strict=True))
    account = Account(engine="SGLang 9.9", place="p", options=OPTIONS, answers=answers)
    found = judge(account, WORDS, runs_here=runs_here)
    return list(found.problems), list(found.notes)


def test_a_refused_baseline_stops_and_a_refused_corner_is_learned() -> None:
    """Without its fixed flags nothing runs; an edge of a range is only infeasible."""
    refusal = Refusal(kind="AssertionError", text="tp must be even")

    assert judged(refusal, refusal, None) == (
        ["engine.flags: SGLang 9.9 refuses it: tp must be even"],
        [],
    )
    assert judged(None, refusal, refusal) == (
        [],
        ["tp=2: SGLang 9.9 refuses it: tp must be even; the search will learn this as infeasible"],
    )
    assert judged(refusal, None, None, runs_here=False)[0] == []


def test_what_is_the_machines_fault_stops_nothing() -> None:
    """Memory in use or no GPU in sight says nothing about the flags."""
    problems, notes = judged(Refusal(kind="RuntimeError", text="CUDA out of memory."), None, None)

    assert problems == []
    assert "on this machine now" in notes[0]


def test_words_that_are_no_command_line_are_problems_at_any_corner() -> None:
    """What the parser refuses can never have been meant."""
    problems, _ = judged(None, None, Refusal(kind="SystemExit", text="not a size: 3"))

    assert problems == ["tp=3: SGLang 9.9 refuses it: not a size: 3"]
