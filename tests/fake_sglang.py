"""A Python interpreter with a made-up SGLang in it, which the real probe can ask."""

import sys
from pathlib import Path

SERVER_ARGS = """
import os, pathlib
pathlib.Path(__file__).with_name("imported").open("a").write("x")
print("a line on stdout that is no answer")

class ServerArgs:
    @staticmethod
    def add_cli_args(parser):
        parser.add_argument("--model-path", "--model")
        parser.add_argument("--host")
        parser.add_argument("--port", type=int)
        parser.add_argument("--enable-metrics", action="store_true")
        parser.add_argument("--schedule-policy", choices=["fcfs", "lpm"])
        parser.add_argument("--max-running-requests", type=int)
        parser.add_argument("--prefill-decode-interval", type=int)
        parser.add_argument("--disable-radix-cache", action="store_true")
        parser.add_argument("--tp-size", type=int)
        parser.add_argument("--mem-fraction-static", type=float)
        parser.add_argument("--graph-sizes", type=int, nargs="+")

    def resolve_once(self):
        if os.environ.get("SET_BY_AN_EARLIER_ANSWER"):
            raise RuntimeError("coloured by an earlier answer")
        os.environ["SET_BY_AN_EARLIER_ANSWER"] = "1"
        if os.environ.get("NO_GPU"):
            raise RuntimeError("No accelerator (CUDA, XPU) is available.")

    def check_server_args(self):
        assert (self.found.prefill_decode_interval or 0) >= 0, "interval must be non-negative"

def prepare_server_args(argv):
    import argparse
    parser = argparse.ArgumentParser(prog="sglang serve")
    ServerArgs.add_cli_args(parser)
    args = ServerArgs()
    args.found = parser.parse_args(argv)
    return args
"""


def install(folder: Path, server_args: str = SERVER_ARGS) -> Path:
    """Write the interpreter into *folder* and return it."""
    package = folder / "site" / "sglang" / "srt"
    package.mkdir(parents=True)
    (package / "server_args.py").write_text(server_args)
    info = folder / "site" / "sglang-9.9.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: sglang\nVersion: 9.9\n")
    python = folder / "python-with-sglang"
    site = folder / "site"
    python.write_text(f'#!/bin/sh\nPYTHONPATH="{site}" exec "{sys.executable}" "$@"\n')
    python.chmod(0o755)
    return python


def imports(python: Path) -> int:
    """Return how often the made-up SGLang was imported."""
    marks = python.parent / "site" / "sglang" / "srt" / "imported"
    return len(marks.read_text()) if marks.exists() else 0
