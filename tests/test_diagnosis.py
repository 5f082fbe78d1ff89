"""What the end of an engine's log says; the texts are those of SGLang 0.5.23, shortened."""

import pytest

from runners.cause import Cause
from runners.diagnosis import Ending, diagnose, fatal, never_ready
from runners.errors import CandidateRejectedError, MachineFaultError

USAGE = "usage: sglang serve [-h] --model-path MODEL_PATH\n" + "  [--some-flag X]\n" * 50
SIGQUIT = "Received sigquit from a child process. It usually means the child failed.\n"
LOADED = "[2026-11-30 20:00:00] Load weight end. elapsed=0.05 s, type=GPT2LMHeadModel\n"
CRASH = (
    "[2026-11-30 20:00:00] Scheduler hit an exception: Traceback (most recent call last):\n"
    '  File "scheduler.py", line 1, in run\n    work()\n'
)

REJECTED = [
    (
        2,
        USAGE + "sglang serve: error: unrecognized arguments: --max-num-batched-tokens 4096\n",
        "no flag --max-num-batched-tokens: .*SGLang has --chunked-prefill-size",
    ),
    (
        2,
        USAGE + "sglang serve: error: unrecognized arguments: --radix-trees\n",
        "no flag --radix-trees: the radix cache is on by default; --disable-radix-cache",
    ),
    (
        2,
        "sglang serve: error: argument --schedule-policy: invalid choice: 'banana' "
        "(choose from 'lpm', 'random')\n",
        "refused a value of --schedule-policy: invalid choice: 'banana'",
    ),
    (
        2,
        "sglang serve: error: argument --chunked-prefill-size: invalid int value: '4k'\n",
        "--chunked-prefill-size: invalid int value: '4k'",
    ),
    (
        2,
        "sglang serve: error: ambiguous option: --cuda-graph-max-bs could match "
        "--cuda-graph-max-bs-decode, --cuda-graph-max-bs-prefill\n",
        "--cuda-graph-max-bs: it could mean --cuda-graph-max-bs-decode",
    ),
    (
        1,
        "Traceback (most recent call last):\n"
        "AssertionError: chunked_prefill_size must be divisible by page_size\n",
        "refused the setting: AssertionError: chunked_prefill_size must be divisible by page_size",
    ),
    (
        1,
        "ValueError: The arguments enable-hierarchical-cache and disable-radix-cache are mutually "
        "exclusive\n",
        "mutually exclusive",
    ),
    (
        -9,
        LOADED + CRASH + "ValueError: Unknown schedule_policy: policy='priority'\n\n" + SIGQUIT,
        "lists the schedule policy priority, but does not have it",
    ),
    (
        137,
        CRASH + "ValueError: Loaded weights leave no GPU memory for the KV cache under "
        "--mem-fraction-static=-0.049. Raise --mem-fraction-static above 0.015 (minimum viable "
        "= 1 - 20.2/20.5).\n" + SIGQUIT,
        "raise mem_fraction_static above 0.015$",
    ),
    (
        -9,
        CRASH + "RuntimeError: Not enough memory. Please try to increase "
        "--mem-fraction-static.\n" + SIGQUIT,
        "raise mem_fraction_static$",
    ),
    (
        -9,
        LOADED + CRASH + "RuntimeError: [enforce fail at alloc_cpu.cpp:117] . "
        "DefaultCPUAllocator: can't allocate memory: you tried to allocate 13072321792 bytes.\n"
        + SIGQUIT,
        "while it set up its KV cache .*: lower mem_fraction_static",
    ),
    (
        -9,
        LOADED + CRASH + "Exception: Capture cuda graph failed: CUDA out of memory. Tried to "
        "allocate 2.00 GiB\nPossible solutions: set --mem-fraction-static to a smaller value\n"
        + SIGQUIT,
        "captured its CUDA graphs .*: lower mem_fraction_static",
    ),
    (
        -9,
        LOADED + CRASH + "Exception: Capture cuda graph failed: no kernel for sm_120\n" + SIGQUIT,
        "could not capture its CUDA graphs.*: no kernel for sm_120",
    ),
    (-9, CRASH + "torch.OutOfMemoryError: CUDA out of memory.\n" + SIGQUIT, "loaded the weights"),
    (-11, "Fatal Python error: Segmentation fault\n", "crashed .signal 11, SIGSEGV"),
]
FAULTS = [
    (
        3,
        "ERROR: [Errno 98] error while attempting to bind on address ('127.0.0.1', 31600): "
        "address already in use\n",
        "port was taken by another process",
        False,
    ),
    (
        1,
        "OSError: Repo id must be in the form 'repo_name' or 'namespace/repo_name': '/nowhere'. "
        "Use `repo_type` argument if needed.\n",
        "check engine.model: Repo id must be",
        True,
    ),
    (
        1,
        "OSError: We couldn't connect to 'https://huggingface.co' to load the files\n",
        "check engine.model",
        True,
    ),
    (1, "/usr/bin/python3: No module named sglang\n", "SGLang is not installed", True),
    (1, "ModuleNotFoundError: No module named 'sglang'\n", "SGLang is not installed", True),
    (
        1,
        "emulated engine: error: the emulated model must be one of A, B, found 'c'\n",
        "^the emulated model must be one of A, B, found 'c'$",
        True,
    ),
    (1, "RuntimeError: No CUDA GPUs are available\n", "cannot use a GPU of this machine", True),
    (-9, CRASH + "RuntimeError: NCCL error: unhandled\n" + SIGQUIT, "GPU or its links", False),
    (-9, LOADED + "Decode batch, #running-req: 3\n", "from outside .signal 9, SIGKILL", False),
    (137, "", "from outside", False),
    (-15, "", "from outside .signal 15, SIGTERM", False),
    (
        4,
        "one line\nand another\n\n",
        "exit code 4.* gave no reason; its last line: 'and an",
        False,
    ),
    (1, "", "it printed nothing", False),
]


@pytest.mark.parametrize(("code", "log", "sentence"), REJECTED)
def test_the_setting_is_to_blame(code: int, log: str, sentence: str) -> None:
    """These ends are the candidate's: learned, with the engine's reason and a hint."""
    with pytest.raises(CandidateRejectedError, match=sentence):
        raise diagnose(Ending(exit_code=code, log=log))


@pytest.mark.parametrize(("code", "log", "sentence", "lasting"), FAULTS)
def test_the_machine_is_to_blame(code: int, log: str, sentence: str, *, lasting: bool) -> None:
    """These ends say nothing about the candidate; the lasting ones stop the study."""
    with pytest.raises(MachineFaultError, match=sentence) as caught:
        raise diagnose(Ending(exit_code=code, log=log))
    assert caught.value.lasting is lasting


def test_a_fixed_flag_is_not_the_candidates_fault() -> None:
    """A flag of the study file that SGLang does not have would fail every trial: stop."""
    log = "error: unrecognized arguments: --no-such-flag 3\n"
    with pytest.raises(MachineFaultError, match=r"--no-such-flag .it stands in engine.flags") as c:
        raise diagnose(Ending(exit_code=2, log=log, fixed_flags=("--no-such-flag", "3")))
    assert c.value.lasting


def test_a_fixed_policy_that_does_not_exist_stops_the_study() -> None:
    """SGLang's own list names it, and no candidate could run beside it."""
    fixed = ("--schedule-policy", "priority")
    log = CRASH + "ValueError: Unknown schedule_policy: policy='priority'\n\n" + SIGQUIT
    with pytest.raises(MachineFaultError, match=r"does not have it .it stands in engine") as c:
        raise diagnose(Ending(exit_code=-9, log=log, fixed_flags=fixed))
    assert c.value.lasting
    assert c.value.cause is Cause.BAD_VALUE


def test_the_kernels_killing_is_the_candidates_fault() -> None:
    """A silent SIGKILL with a count of the kernel's own is a setting too big for the machine."""
    with pytest.raises(CandidateRejectedError, match="memory was full"):
        raise diagnose(Ending(exit_code=-9, log=LOADED, oom_kills=1))


def test_a_harmless_traceback_does_not_hide_a_killing() -> None:
    """SGLang logs exceptions it lives with; a SIGKILL after one still came from outside."""
    log = "post-warmup freeze_gc failed\nrequests.ConnectionError: Connection refused\n"
    with pytest.raises(MachineFaultError, match="from outside"):
        raise diagnose(Ending(exit_code=-9, log=log))


def test_memory_that_runs_out_under_load_asks_for_less() -> None:
    """The same words mean the opposite once the engine had been serving."""
    log = LOADED + CRASH + "torch.OutOfMemoryError: CUDA out of memory.\n" + SIGQUIT
    with pytest.raises(CandidateRejectedError, match=r"under load .*lower mem_fraction_static"):
        raise diagnose(Ending(exit_code=-9, log=log, ready=True))


def test_an_engine_that_never_answers_is_quoted() -> None:
    """The last line is the best hint at what it was waiting for."""
    with pytest.raises(CandidateRejectedError, match=r"within 900 s; .*'Loading shards: 10%'"):
        raise never_ready("start\nLoading shards: 10%\n", 900)


def test_an_engine_that_hangs_as_it_dies_is_diagnosed_by_its_log() -> None:
    """What it said before it hung is the reason, not that it was late."""
    with pytest.raises(MachineFaultError, match="port was taken"):
        raise never_ready("ERROR: [Errno 98] ... address already in use\nshutting down\n", 900)


def test_an_engine_that_announces_its_end_is_diagnosed_before_it_ends() -> None:
    """There is no exit code yet; the exception it died of is the reason, else its last line."""
    with pytest.raises(CandidateRejectedError, match=r"crashed while it started: KeyError: 'x'"):
        raise never_ready(CRASH + "KeyError: 'x'\n" + SIGQUIT, 900)
    with pytest.raises(
        MachineFaultError, match=r"announces its end and gives no reason; .*sigquit"
    ):
        raise diagnose(Ending(exit_code=None, log=SIGQUIT))


HOPELESS = [
    CRASH,
    SIGQUIT,
    "[2026-11-30 20:00:00 TP1] Scheduler hit an exception: Traceback (most recent call last):\n",
    "DetokenizerManager hit an exception: Traceback (most recent call last):\n",
    "Subprocess scheduler_0 (pid=7) crashed with exit code -9. Triggering SIGQUIT for cleanup\n",
    "Exception: Capture cuda graph failed: CUDA out of memory.\n",
    "Rank 0 scheduler is dead. Please check if there are relevant logs.\n",
    "RuntimeError: Rank 1 scheduler died during initialization (exit code: -9).\n",
    "Watchdog timeout (self.watchdog_timeout=300)\n",
    "Scheduler watchdog timeout (self.watchdog_timeout=300, self.soft=False)\n",
    "ERROR: [Errno 98] error while attempting to bind on address ('127.0.0.1', 31600): address "
    "already in use\n",
    "RuntimeError: Engine core initialization failed. See root cause above.\n",
    "(EngineCore_DP0 pid=7) ERROR 11-30 20:00:00 [core.py:708] EngineCore failed to start.\n",
    "(EngineCore_DP0 pid=7) ERROR 11-30 20:00:00 [core.py:708] torch.OutOfMemoryError: CUDA out\n",
    "EngineCore encountered a fatal error.\n",
    "vllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered an issue.\n",
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n",
    "Fatal Python error: Segmentation fault\n",
    "terminate called after throwing an instance of 'c10::DistBackendError'\n",
]
HARMLESS = [
    "",
    "Ignore import error when loading sglang.srt.models.falcon_mamba: No module named 'x'\n",
    "Cannot detect CUDA architecture\n",
    "Fail to set RLIMIT_NOFILE: current limit exceeds maximum limit\n",
    "init_cpu_threads_env is disabled\n",
    "post-warmup freeze_gc failed\nTraceback (most recent call last):\n  File 'x.py', line 1\n"
    "requests.exceptions.ConnectionError: ... Connection refused\n",
    "Capture cuda graph begin. This can take up to several minutes. avail mem=20.24 GB\n",
    "Capture cuda graph end. Time elapsed: 3.20 s\n",
    "Watchdog SchedulerWatchdog initialized.\n",
    "TokenizerManager watchdog timeout (self.watchdog_timeout=300, self.soft=True)\n",
    "KV cache pool is full. Retract requests. #retracted_reqs: 1\n",
    "ERROR: Exception in ASGI application\nValueError: bad request\n",
    "Decode batch, #running-req: 3, token usage: 0.67, #queue-req: 0\n",
    "The memory capacity is unbalanced. Some GPUs may be occupied by other processes.\n",
]


@pytest.mark.parametrize("text", HOPELESS)
def test_an_engine_that_will_not_live_is_known_by_its_log(text: str) -> None:
    """Nobody need wait for the end of an engine that announced it, amid other lines."""
    assert fatal("Load weight begin.\n" + text + "Decode batch, #running-req: 3\n")


@pytest.mark.parametrize("text", HARMLESS)
def test_harmless_lines_are_no_alarm(text: str) -> None:
    """An engine that logs what it lives with is left alone."""
    assert not fatal(text)
