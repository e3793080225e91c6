"""Child processes that may die or hang: requests and answers are length-prefixed pickles over pipes, with time limits.

Requests may be queued (`send` several, then `receive`); a child answers in order. `send` reads while it writes, so two
full pipes never wait for each other.
"""

from __future__ import annotations

import os
import pickle
import select
import signal
import subprocess
import sys
import tempfile
import time

_HEADER = 8
PIPE_BYTES = 1 << 20  # the most that Linux gives


class ChildError(Exception):
    """The child process is gone or silent. `kind`: "crash" or "hang"; `detail`: signal or exit code; `log`: the end of its stderr."""

    def __init__(self, kind: str, detail: str, log: str = ""):
        super().__init__(f"{kind}: {detail}")
        self.kind, self.detail, self.log = kind, detail, log


def describe_exit(code: int | None) -> str:
    """ "signal 11 (SIGSEGV)" or "exit code 3"."""
    if code is None:
        return "still running"
    if code >= 0:
        return f"exit code {code}"
    try:
        return f"signal {-code} ({signal.Signals(-code).name})"
    except ValueError:
        return f"signal {-code}"


def _widen(pipe: int) -> None:
    """Let a pipe hold some requests or answers, so that neither side waits for the other to read one."""
    try:
        import fcntl
        fcntl.fcntl(pipe, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
    except (ImportError, AttributeError, OSError):  # another system, or the user's pipes have all that they may
        pass


class Child:
    """One child running `python -m pytest_mlc.worker ROLE`; started on first use, and again after it died."""

    def __init__(self, role: str, environment: dict[str, str] | None = None):
        self.command = [sys.executable, "-m", "pytest_mlc.worker", role]
        self.environment = environment or {}
        self.process: subprocess.Popen | None = None
        self.starts = 0
        self._buffer = bytearray()
        self._log = None

    # ----------------------------------------------------------------- life
    def start(self) -> None:
        """Start the process if it isn't running."""
        if self.process is not None:
            return
        self._log = tempfile.TemporaryFile()
        # The parent's import path, and not its warning filters: a warning inside JAX is no failure of ours.
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p), "PYTHONWARNINGS": "", **self.environment}
        self.process = subprocess.Popen(self.command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._log, env=environment)
        os.set_blocking(self.process.stdin.fileno(), False)
        for pipe in (self.process.stdin, self.process.stdout):
            _widen(pipe.fileno())
        self._buffer.clear()
        self.starts += 1

    def stop(self) -> None:
        """End the process, whatever it does."""
        process, self.process = self.process, None
        if process is not None:
            process.kill()
            process.wait()
            process.stdin.close()
            process.stdout.close()
        if self._log is not None:
            self._log.close()
            self._log = None

    def resident_bytes(self) -> int:
        """Memory that the process holds; 0 where /proc doesn't tell."""
        try:
            with open(f"/proc/{self.process.pid}/statm", encoding="ascii") as file:
                return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
        except (OSError, AttributeError, IndexError, ValueError):
            return 0

    def __enter__(self) -> Child:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _fail(self, kind: str, detail: str = "") -> ChildError:
        """Bury the process and say why it is gone."""
        if kind == "crash":
            try:
                self.process.wait(5)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
            detail = describe_exit(self.process.returncode)
        self._log.seek(max(0, self._log.seek(0, os.SEEK_END) - 8000))
        log = self._log.read().decode("utf-8", "replace")
        self.stop()
        return ChildError(kind, detail, log)

    # ----------------------------------------------------------------- talk
    def send(self, request: object, timeout: float = 60.0) -> None:
        """Queue a request. Raises ChildError when the child doesn't read for `timeout` seconds.

        Whether it is dead is for `receive` to say, after the answers that it gave before.
        """
        self.start()
        payload = pickle.dumps(request, protocol=5)
        data = memoryview(len(payload).to_bytes(_HEADER, "little") + payload)
        out, back = self.process.stdin.fileno(), self.process.stdout.fileno()
        while data:
            readable, writable, _ = select.select([back], [out], [], timeout)
            if not readable and not writable:
                raise self._fail("hang", f"did not read a request for {timeout:.0f} s")
            if readable and not self._read_some():
                return
            if writable:
                try:
                    data = data[os.write(out, data):]
                except BrokenPipeError:
                    return

    def receive(self, timeout: float) -> object:
        """The next answer. Raises ChildError("crash") or ("hang") and leaves the child stopped."""
        deadline = time.monotonic() + timeout
        while True:
            size = int.from_bytes(self._buffer[:_HEADER], "little") if len(self._buffer) >= _HEADER else None
            if size is not None and len(self._buffer) >= _HEADER + size:
                payload = bytes(self._buffer[_HEADER:_HEADER + size])
                del self._buffer[:_HEADER + size]
                return pickle.loads(payload)
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([self.process.stdout.fileno()], [], [], left)[0]:
                raise self._fail("hang", f"no answer within {timeout:.0f} s")
            if not self._read_some():
                raise self._fail("crash")

    def _read_some(self) -> bool:
        data = os.read(self.process.stdout.fileno(), 1 << 20)
        self._buffer += data
        return bool(data)

    def answered(self) -> bool:
        """Whether something can be read: an answer that has begun, or the end of the process."""
        return bool(self._buffer) or bool(select.select([self.process.stdout.fileno()], [], [], 0)[0])

    def ask(self, request: object, timeout: float) -> object:
        """Send one request and wait for its answer."""
        self.send(request)
        return self.receive(timeout)
