"""The emulated engine's command line."""

import asyncio
import sys
from collections.abc import Sequence
from random import SystemRandom

from runners.emulated.death import REFUSED_SETTING, EngineDeathError
from runners.emulated.hardware import HARDWARE
from runners.emulated.models import MODELS
from runners.emulated.server import Server
from runners.emulated.settings import Settings, parse

LARGEST_SEED = 2**31


def main(argv: Sequence[str] | None = None) -> int:
    """Run the engine that *argv* (default: the process's own words) asks for; return its end.

    0 after SIGTERM, 1 for a refused setting, 2 for a refused flag, 3 for a port in use, 137 where
    SGLang's scheduler would have died.
    """
    words = list(sys.argv[1:] if argv is None else argv)
    if words == ["--list"]:
        sys.stdout.write(listing())
        return 0
    try:
        settings = parse(words)
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else 0
    return serve(settings, words)


def serve(settings: Settings, words: Sequence[str]) -> int:
    """Serve until SIGTERM or death; return the exit code."""
    seed = settings.random_seed
    if seed is None:
        seed = SystemRandom().randrange(LARGEST_SEED)
    command = ("python", "-m", "runners.emulated", *words)
    try:
        return asyncio.run(_run(settings, command, seed))
    except EngineDeathError as death:
        sys.stderr.write(death.log)
        return death.exit_code
    except ValueError as error:
        sys.stderr.write(f"emulated engine: error: {error}\n")
        return REFUSED_SETTING


async def _run(settings: Settings, command: Sequence[str], seed: int) -> int:
    return await Server(settings, command, seed).run()


def listing() -> str:
    """Return the tables of what can be emulated, for people."""
    lines = ["hardware    bf16 TFLOPS   memory GiB   GB/s"]
    lines += [
        f"{g.name:12}{g.bf16_tflops:11.0f}{g.memory_gib:13.1f}{g.bandwidth_gb_s:7.0f}"
        for g in HARDWARE.values()
    ]
    lines += ["", "model           parameters   context   also known as"]
    lines += [
        f"{m.name:15}{m.parameters / 1e9:9.2f} bn{m.max_context:10}   {', '.join(m.aliases)}"
        for m in MODELS.values()
    ]
    return "\n".join(lines) + "\n"
