"""A small real process that stands where SGLang would, for the traps of process control: binds, answers, misbehaves.

Run as a program: `python standin.py --config FILE --port P [--hang] [--open] [--die-once FILE] [--deaf]
[--orphan FILE] [--die CODE] [--rank FILE [--needs-rank]] [--replace FILE]`.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--config", type=Path, required=True)
    parser.add_argument("--open", action="store_true", help="answer without a key, too")
    parser.add_argument("--hang", action="store_true", help="answer /health and never a generation")
    parser.add_argument("--die", type=int, help="print a last word and exit with this code")
    parser.add_argument("--die-once", type=Path, help="after the first generation, unless this file is there")
    parser.add_argument("--deaf", action="store_true", help="ignore SIGTERM")
    parser.add_argument("--orphan", type=Path, help="leave a child in a session of its own; its pid goes here")
    parser.add_argument("--needs-rank", action="store_true", help="a generation hangs while the rank is frozen")
    parser.add_argument("--rank", type=Path, help="have a child whose title is a rank's; its pid goes here")
    parser.add_argument("--replace", type=Path, help="another user replaces this file while it is loaded")
    options = parser.parse_args()
    if options.replace:
        options.replace.write_bytes(b"another's")
    if options.deaf:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if options.orphan:
        spawn_orphan(options.orphan)
    if options.rank:
        code = "import ctypes, time; ctypes.CDLL(None).prctl(15, b'sglang::schedul'); time.sleep(600)"
        title = ["sglang::scheduler_TP0", "-c", code]
        rank = subprocess.Popen(title, executable=sys.executable)
        options.rank.write_text(str(rank.pid))
    if options.die is not None:
        print("loading\nthe last word before the end", flush=True)
        sys.exit(options.die)
    serve(options)


def spawn_orphan(file: Path) -> None:
    """A grandchild whose parent ends at once, so that it reparents, with a session of its own."""
    code = "import subprocess as s; print(s.Popen(['sleep', '600'], start_new_session=True, stdout=s.DEVNULL).pid)"
    pid = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, check=True).stdout.strip()
    aside = file.with_suffix(".aside")
    aside.write_text(pid)
    aside.rename(file)


def serve(options: argparse.Namespace) -> None:
    key = json.loads(options.config.read_text())["api-key"]
    print(f"server_args=ServerArgs(port={options.port}, api_key='{key}', tp_size=1)", flush=True)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._answer({})

        def do_POST(self) -> None:
            if not options.open and self.headers["Authorization"] != f"Bearer {key}":
                self.send_error(401)
                return
            if options.hang:
                threading.Event().wait()
            if options.needs_rank:
                pid = options.rank.read_text()
                while Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T":
                    time.sleep(0.02)
            self._answer({"output_ids": [1]})
            if options.die_once and not options.die_once.exists():
                options.die_once.write_text("died")
                os._exit(3)

        def _answer(self, content: object) -> None:
            body = json.dumps(content).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    ThreadingHTTPServer(("127.0.0.1", options.port), Handler).serve_forever()


if __name__ == "__main__":
    main()
