"""SGLang's flags, as far as they are emulated: words in, frozen settings out.

What the user left open stays None here; `deployment.py` says what the engine makes of it.
"""

import argparse
import re
from collections.abc import Sequence
from dataclasses import dataclass, fields

from runners.emulated import faults
from runners.emulated.hardware import HARDWARE
from runners.emulated.models import MODELS
from runners.emulated.policies import LISTED_POLICIES


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What the user asked for."""

    model_path: str
    emulated_hardware: str
    emulated_speed: float = 1.0  # emulated seconds per second of wall clock
    host: str = "127.0.0.1"
    port: int = 30000
    served_model_name: str | None = None
    schedule_policy: str = "fcfs"
    schedule_conservativeness: float = 1.0
    max_running_requests: int | None = None
    max_queued_requests: int | None = None
    chunked_prefill_size: int | None = None
    max_prefill_tokens: int = 16384
    enable_mixed_chunk: bool = False
    mem_fraction_static: float | None = None
    max_total_tokens: int | None = None
    context_length: int | None = None
    page_size: int = 1
    disable_radix_cache: bool = False
    stream_interval: int = 1
    tp_size: int = 1
    random_seed: int | None = None
    enable_metrics: bool = False
    enable_cache_report: bool = False
    emulated_fault: tuple[faults.Fault, ...] = ()


SETTING_NAMES = tuple(f.name for f in fields(Settings))

_SUFFIXES = {"": 1, "k": 1000, "K": 1000, "Ki": 1024, "M": 1000**2, "Mi": 1024**2}

_ABOUT = """\
A model of an SGLang-like engine behind SGLang's flags and endpoints. It needs no GPU and no
weights: it computes how long each step would take. No figure it gives is a measurement of real
hardware."""

_EXAMPLE = f"""\
models:    {", ".join(MODELS)} (or their published ids)
hardware:  {", ".join(HARDWARE)}

example, ten emulated seconds per second:
  tuner emulate --model-path Llama-3.1-8B --emulated-hardware A100-80G --emulated-speed 10 \\
      --port 30000 --schedule-policy lpm --max-running-requests 64 --enable-metrics
  curl -s http://127.0.0.1:30000/generate -H 'Content-Type: application/json' \\
      -d '{{"text": "Hello", "sampling_params": {{"max_new_tokens": 8}}}}'

--list alone shows the tables of models and hardware.
exit codes, as SGLang's: 1 refused setting, 2 refused flag, 3 port taken, 137 died of memory

faults, each --emulated-fault KIND:key=value,... (seconds of the wall clock; what has a value here
may be left out):
{faults.listing()}"""


def size(words: str) -> int:
    """Return the number that *words* mean: digits with an optional k, Ki, M or Mi."""
    found = re.fullmatch(r"(-?\d+)(k|K|Ki|M|Mi)?", words)
    if found is None:
        raise argparse.ArgumentTypeError(f"invalid int value: {words!r}")
    return int(found[1]) * _SUFFIXES[found[2] or ""]


def fault(words: str) -> faults.Fault:
    """Return the fault that *words* ask for."""
    try:
        return faults.read_fault(words)
    except faults.FaultError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def parser() -> argparse.ArgumentParser:
    """Return the parser of the emulated engine's command line."""
    known = argparse.ArgumentParser(
        prog="emulated engine",
        description=_ABOUT,
        epilog=_EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    _add_emulation(known.add_argument_group("what is emulated"))
    _add_server(known.add_argument_group("server"))
    _add_scheduling(known.add_argument_group("scheduling"))
    _add_memory(known.add_argument_group("memory and parallelism"))
    return known


def parse(words: Sequence[str]) -> Settings:
    """Return the settings that *words* ask for.

    Raises:
        SystemExit: with 2 for words that SGLang would refuse; the reason went to stderr.
    """
    found = vars(parser().parse_args(words))
    found["emulated_fault"] = tuple(found["emulated_fault"])
    return Settings(**{name: found[name] for name in SETTING_NAMES})


def _add_emulation(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--model-path", required=True, help="the model, by name")
    group.add_argument("--emulated-hardware", required=True, help="the GPU, by name")
    group.add_argument(
        "--emulated-speed",
        type=float,
        default=1.0,
        help="emulated seconds per second of wall clock (default 1: as the hardware would)",
    )
    group.add_argument("--random-seed", type=int, help="fixes the noise of the step times")
    group.add_argument(
        "--emulated-fault",
        type=fault,
        action="append",
        default=[],
        metavar="KIND[:key=value,...]",
        help="go wrong on purpose, in a way named below; may be given several times",
    )


def _add_server(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--host", default="127.0.0.1")
    group.add_argument("--port", type=int, default=30000)
    group.add_argument("--served-model-name", help="default: the model path")
    group.add_argument("--stream-interval", type=int, default=1, help="tokens per stream event")
    group.add_argument("--enable-metrics", action="store_true", help="serve /metrics")
    group.add_argument(
        "--enable-cache-report", action="store_true", help="cached_tokens in every usage"
    )


def _add_scheduling(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--schedule-policy", choices=LISTED_POLICIES, default="fcfs")
    group.add_argument("--schedule-conservativeness", type=float, default=1.0)
    group.add_argument("--max-running-requests", type=int)
    group.add_argument("--max-queued-requests", type=int)
    group.add_argument("--chunked-prefill-size", type=int, help="0 or less: no chunks")
    group.add_argument("--max-prefill-tokens", type=size, default=16384)
    group.add_argument("--enable-mixed-chunk", action="store_true")
    group.add_argument("--disable-radix-cache", action="store_true")


def _add_memory(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--mem-fraction-static", type=float, help="share of the memory for weights and KV cache"
    )
    group.add_argument("--max-total-tokens", type=size, help="upper limit of the KV pool")
    group.add_argument("--context-length", type=size)
    group.add_argument("--page-size", type=int, default=1)
    group.add_argument("--tp-size", type=int, default=1)
