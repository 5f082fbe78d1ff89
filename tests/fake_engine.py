"""A small HTTP server that speaks enough of SGLang to be tried, and fails on request.

`python fake_engine.py --fake=WHAT --model-path M --port P [any other flags]`, where WHAT is "" or
exit, silent, never-ready, hang, cold, missing-model, oom, die-under-load, orphan, busy,
other-model, refuse.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

DEAF = (
    "import os, signal, time\n"
    "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
    "if os.fork(): os._exit(0)\n"
    "os.setsid()\n"
    "while True: time.sleep(1)\n"
)


class Totals:
    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.requests = self.prompt_tokens = self.running = 0


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    options: argparse.Namespace
    totals = Totals()
    health_checks = 0

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        pass

    def do_GET(self) -> None:
        match self.path.partition("?")[0]:
            case "/health":
                Handler.health_checks += 1
                warm = Handler.health_checks > 3 and self.options.fake != "cold"
                self._json(200 if warm else 503, {})
            case "/server_info":
                self._json(200, self._server_info())
            case "/v1/loads":
                rank = {
                    "num_running_reqs": self.totals.running,
                    "num_waiting_reqs": 0,
                    "token_usage": 0.25,
                    "max_total_num_tokens": 20000,
                }
                self._json(200, {"loads": [rank]})
            case "/metrics":
                text = (
                    f'sglang:prompt_tokens_total{{model_name="m"}} {self.totals.prompt_tokens}\n'
                )
                self._answer(200, "text/plain", text.encode())
            case _:
                self._json(404, {})

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        match self.path.partition("?")[0]:
            case "/flush_cache":
                self._json(400 if self.options.fake == "busy" else 200, {})
            case "/v1/completions":
                self._complete(json.loads(body))
            case _:
                self._json(404, {})

    def _complete(self, request: dict[str, Any]) -> None:
        with self.totals.lock:
            self.totals.requests += 1
            number = self.totals.requests
            self.totals.prompt_tokens += len(request["prompt"])
        self._misbehave(number)
        if self.options.fake == "refuse":
            self._json(404, {"message": "no such model"})
            return
        usage = {
            "prompt_tokens": len(request["prompt"]),
            "completion_tokens": request["max_tokens"],
        }
        if not request.get("stream"):
            self._json(200, {"choices": [{"text": "ab"}], "usage": usage})
            return
        self.totals.running += 1
        self._stream(request["max_tokens"], usage)
        self.totals.running -= 1

    def _misbehave(self, number: int) -> None:
        match self.options.fake:
            case "hang":
                time.sleep(3600)
            case "die-under-load" if number > 5:
                _say("torch.OutOfMemoryError: CUDA out of memory.")
                os._exit(1)
            case _:
                pass

    def _stream(self, tokens: int, usage: dict[str, int]) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for i in range(tokens):
            time.sleep(0.002)
            reason = "length" if i == tokens - 1 else None
            choice = {"index": 0, "text": "a", "finish_reason": reason}
            self._event(json.dumps({"choices": [choice], "usage": None}))
        self._event(json.dumps({"choices": [], "usage": usage}))
        self._event("[DONE]")
        self.wfile.write(b"0\r\n\r\n")

    def _event(self, data: str) -> None:
        text = f"data: {data}\n\n".encode()
        self.wfile.write(f"{len(text):x}\r\n".encode() + text + b"\r\n")

    def _server_info(self) -> dict[str, Any]:
        other = self.options.fake == "other-model"
        return {
            "model_path": "another" if other else self.options.model_path,
            "port": self.options.port,
            "version": "0.0-fake",
            "schedule_policy": self.options.schedule_policy,
            "chunked_prefill_size": self.options.chunked_prefill_size,
            "max_total_num_tokens": 20000,
            "internal_states": [{"effective_max_running_requests_per_dp": 64}],
        }

    def _json(self, status: int, data: dict[str, Any]) -> None:
        self._answer(status, "application/json", json.dumps(data).encode())

    def _answer(self, status: int, kind: str, data: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def _fail_to_start(failure: str) -> None:
    match failure:
        case "exit":
            _say("AssertionError: chunked_prefill_size must be divisible by page_size")
            sys.exit(1)
        case "silent":
            sys.exit(3)
        case "missing-model":
            _say("OSError: Repo id must be in the form 'namespace/repo_name': '/nowhere'")
            sys.exit(1)
        case "oom":
            _say(
                "Load weight end.\nScheduler hit an exception: Traceback (most recent call last):"
            )
            _say("RuntimeError: Not enough memory. Please try to increase --mem-fraction-static.")
            _say("Received sigquit from a child process.")
            os.kill(os.getpid(), signal.SIGKILL)
        case "never-ready":
            _say("still loading")
            time.sleep(3600)
        case "orphan":
            subprocess.Popen([sys.executable, "-I", "-S", "-c", DEAF]).wait()
        case _:
            pass


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--fake", default="")
    parser.add_argument("--model-path", required=True)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--schedule-policy", default="fcfs")
    parser.add_argument("--chunked-prefill-size", type=int, default=4096)
    options, _ = parser.parse_known_args()
    _fail_to_start(options.fake)
    Handler.options = options
    ThreadingHTTPServer.daemon_threads = True
    ThreadingHTTPServer.request_queue_size = 256
    ThreadingHTTPServer(("127.0.0.1", options.port), Handler).serve_forever()


if __name__ == "__main__":
    main()
