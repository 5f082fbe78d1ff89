"""The emulated engine as a process: it starts up, serves, drains and goes, like SGLang does."""

import asyncio
import gc
import os
import signal
import time
from collections.abc import Sequence
from contextlib import suppress

from runners.emulated import log
from runners.emulated.death import ADDRESS_IN_USE, CHILD_FAILED, EngineDeathError
from runners.emulated.deployment import deploy
from runners.emulated.exchange import Connection
from runners.emulated.faults import IgnoreSigterm, find
from runners.emulated.hardware import hardware_named
from runners.emulated.misbehaviour import Misbehaviour
from runners.emulated.models import model_named
from runners.emulated.pacing import Pacer
from runners.emulated.routes import Routes
from runners.emulated.scheduler import EngineModel
from runners.emulated.settings import Settings

LOADING_BYTES_PER_S = 8e9  # emulated, like all start-up times; kept short on purpose
WARM_UP_S = 0.5


class Server:
    """One launch."""

    def __init__(self, settings: Settings, words: Sequence[str], seed: int) -> None:
        self._settings = settings
        self._words = words
        self._seed = seed
        self._stop = asyncio.Event()
        self._misbehaviour = Misbehaviour(settings.emulated_fault, self._stop)
        self._connections: set[Connection] = set()

    async def run(self) -> int:
        """Serve until told to stop; return the exit code.

        Raises:
            EngineDeathError: SGLang would have died.
            ValueError: model or hardware are not in the tables.
        """
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stop.set)
        if find(self._settings.emulated_fault, IgnoreSigterm) is not None:
            loop.add_signal_handler(signal.SIGTERM, log.say, "SIGTERM received, and ignored.")
        started_s = time.perf_counter()
        routes = await self._start()
        if self._stop.is_set():
            return 0
        try:
            listener = await loop.create_server(
                lambda: Connection(routes.handle, self._connections),
                self._settings.host,
                self._settings.port,
            )
        except OSError as error:
            log.say(f"ERROR:    {_bind_error(error, self._settings)}")
            return ADDRESS_IN_USE
        log.say(f"Uvicorn running on http://{self._settings.host}:{self._settings.port}")
        async with listener:
            await self._serve(routes, started_s)
            listener.close()
            for connection in tuple(self._connections):
                connection.drop()
        log.say("SIGTERM received. Requests drained, shutting down.")
        return 0

    async def _start(self) -> Routes:
        """Load, allocate and capture, in emulated time."""
        settings = self._settings
        model = model_named(settings.model_path)
        hardware = hardware_named(settings.emulated_hardware)
        log.say(log.banner(model.name, hardware.name, settings.emulated_speed))
        await self._misbehaviour.start()
        try:
            deployment = self._misbehaviour.deployed(deploy(settings))
        except EngineDeathError as death:
            if death.exit_code == CHILD_FAILED and death.weights_loaded:
                log.say(log.weights(model, hardware, settings.tp_size, 0.0))
            raise
        loading_s = model.weight_bytes / settings.tp_size / LOADING_BYTES_PER_S
        await self._pass(loading_s)
        log.say(log.weights(model, hardware, settings.tp_size, loading_s))
        for line in log.capacity(deployment):
            log.say(line)
        engine = EngineModel(deployment, self._seed)
        pacer = Pacer(
            engine, settings.emulated_speed, log.StepLog(engine).note, self._misbehaviour.step
        )
        return Routes(
            engine=engine,
            pacer=pacer,
            words=self._words,
            seed=self._seed,
            misbehaviour=self._misbehaviour,
        )

    async def _serve(self, routes: Routes, started_s: float) -> None:
        """Warm up, work until told to stop, and drain."""
        work = asyncio.create_task(routes.pacer.run())
        await self._pass(WARM_UP_S)
        await self._misbehaviour.warm_up()
        gc.freeze()  # what is here now stays; do not look through it again
        routes.startup_s = time.perf_counter() - started_s
        routes.ready = True
        log.say("The server is fired up and ready to roll!")
        await _first(work, self._stop)
        routes.drains = True
        await _first(work, routes.pacer.idle)
        if work.done():
            await work  # raises what it died of
        work.cancel()
        with suppress(asyncio.CancelledError):
            await work

    async def _pass(self, emulated_s: float) -> None:
        """Wait, but not after the order to stop."""
        with suppress(TimeoutError):
            async with asyncio.timeout(emulated_s / self._settings.emulated_speed):
                await self._stop.wait()


async def _first(work: asyncio.Task[None], event: asyncio.Event) -> None:
    """Wait until *work* has ended or *event* is set."""
    waiter = asyncio.create_task(event.wait())
    await asyncio.wait((work, waiter), return_when=asyncio.FIRST_COMPLETED)
    waiter.cancel()


def _bind_error(error: OSError, settings: Settings) -> str:
    where = (settings.host, settings.port)
    return (
        f"[Errno {error.errno}] error while attempting to bind on address {where}: "
        f"{os.strerror(error.errno or 0).lower()}"
    )
