"""Which request gets which answer: SGLang's endpoints over one emulated engine."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count

import orjson

from runners.emulated import pages
from runners.emulated.answers import Chat, Completion, Generate, Wording
from runners.emulated.asks import (
    Ask,
    BadRequestError,
    Limits,
    read_chat,
    read_completion,
    read_generate,
)
from runners.emulated.exchange import PLAIN, Exchange
from runners.emulated.misbehaviour import Misbehaviour
from runners.emulated.pacing import Pacer
from runners.emulated.request import Request
from runners.emulated.scheduler import EngineModel

Reader = Callable[[bytes, Limits], Ask]
GENERATING: dict[str, tuple[Reader, Callable[..., Wording]]] = {
    "/generate": (read_generate, Generate),
    "/v1/completions": (read_completion, Completion),
    "/v1/chat/completions": (read_chat, Chat),
}


@dataclass(slots=True, kw_only=True)
class Routes:
    """The endpoints; not *ready* before the engine has warmed up, nor when it *drains*."""

    engine: EngineModel
    pacer: Pacer
    words: Sequence[str]  # of the command line
    seed: int
    misbehaviour: Misbehaviour
    ready: bool = False
    drains: bool = False
    startup_s: float = 0.0
    _ids: Iterator[int] = field(default_factory=lambda: count(1))

    def handle(self, exchange: Exchange) -> None:
        """Answer, now or token by token."""
        if exchange.path in GENERATING:
            self._generate(exchange)
        elif (page := self._pages().get(exchange.path)) is not None:
            page(exchange)
        else:
            exchange.answer_json(404, {"detail": "Not Found"})

    def _pages(self) -> dict[str, Callable[[Exchange], None]]:
        pages_of: dict[str, Callable[[Exchange], None]] = {
            "/health": self._health,
            "/health_generate": self._health,
            "/ping": lambda e: e.answer(200, b"", PLAIN),
            "/model_info": self._model_info,
            "/get_model_info": self._model_info,
            "/v1/models": lambda e: e.answer_json(200, pages.models(self.engine.deployment)),
            "/server_info": self._server_info,
            "/get_server_info": self._server_info,
            "/v1/loads": lambda e: e.answer_json(200, pages.loads(self.engine)),
            "/flush_cache": self._flush,
        }
        if self.engine.settings.enable_metrics:
            pages_of["/metrics"] = self._metrics
        return pages_of

    def _health(self, exchange: Exchange) -> None:
        exchange.answer(200 if self.ready and not self.drains else 503, b"", PLAIN)

    def _model_info(self, exchange: Exchange) -> None:
        exchange.answer_json(200, pages.model_info(self.engine.deployment))

    def _server_info(self, exchange: Exchange) -> None:
        info = pages.server_info(
            self.engine, self.pacer.lag, self.words, self.seed, self.startup_s
        )
        exchange.answer_json(200, info)

    def _metrics(self, exchange: Exchange) -> None:
        exchange.answer(200, pages.metrics(self.engine).encode(), PLAIN)

    def _flush(self, exchange: Exchange) -> None:
        if self.engine.flush():
            exchange.answer(200, b"Cache flushed.\n", PLAIN)
        else:
            exchange.answer(400, b"Flush cache failed: requests are running or waiting.\n", PLAIN)

    def _generate(self, exchange: Exchange) -> None:
        if exchange.method != "POST":
            exchange.answer_json(405, {"detail": "Method Not Allowed"})
            return
        if self.drains or not self.ready:
            _refuse(exchange, 503, "The server is not ready or is shutting down.")
            return
        read, wording = GENERATING[exchange.path]
        deployment = self.engine.deployment
        limits = Limits(
            deployment.model.vocabulary, deployment.context_length, deployment.served_name
        )
        try:
            ask = read(exchange.body, limits)
        except BadRequestError as error:
            _refuse(exchange, 400, str(error))
            return
        self._submit(exchange, ask, wording)

    def _submit(self, exchange: Exchange, ask: Ask, wording: Callable[..., Wording]) -> None:
        if (refusal := self.engine.refusal(len(ask.prompt))) is not None:
            _refuse(exchange, 400, refusal)
            return
        if self.engine.queue_is_full:
            _refuse(exchange, 503, "The request queue is full.")
            return
        ask = self.misbehaviour.asked(ask)
        if self.misbehaviour.spoils(exchange, ask):
            return
        settings = self.engine.settings
        request = Request(
            id=next(self._ids),
            prompt=ask.prompt,
            output_tokens=ask.output_tokens,
            ignore_eos=ask.ignore_eos,
        )
        answer = self.misbehaviour.answer(exchange, ask, request, settings.stream_interval)
        answer.begin(wording(ask, request, report_cache=settings.enable_cache_report))
        exchange.on_gone = lambda: self.pacer.abort(answer)
        self.pacer.submit(answer)


def _refuse(exchange: Exchange, status: int, message: str) -> None:
    kind = "BadRequest" if status == 400 else "ServiceUnavailable"  # noqa: PLR2004
    error = {"object": "error", "message": message, "type": kind, "param": None, "code": status}
    body = {"error": {"message": message}} if exchange.path == "/generate" else error
    exchange.answer(status, orjson.dumps(body))
