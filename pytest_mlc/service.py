"""A child process as a service: started when needed, asked one thing at a time or several in a row (`Pipeline`)."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any

import numpy as np

from mlc.core.literal import Literal
from mlc.graph.graph import Graph
from mlc.graph.text import parse_graph, print_graph
from pytest_mlc.child import Child, ChildError

START_TIMEOUT = 120.0


def run_request(graph: Graph, args: Sequence[np.ndarray], **extra: object) -> dict[str, Any]:
    """The request to run a graph: its text, the constants that the text names by digest, and the arguments."""
    constants = {digest: literal.array for digest, literal in graph.constants().items()}
    return {"do": "run", "text": print_graph(graph), "constants": constants, "args": list(args), **extra}


def read_graph(request: dict[str, Any]) -> Graph:
    """The graph of a request, in the child."""
    return parse_graph(request["text"], {digest: Literal(array) for digest, array in request["constants"].items()})


class Service:
    """One role of `pytest_mlc.worker`; `start` waits until it is ready."""

    def __init__(self, role: str, environment: dict[str, str] | None = None):
        self.role = role
        self.child = Child(role, environment)
        self.greeting: dict[str, Any] = {}
        self._greeted = 0

    @property
    def running(self) -> bool:
        return self.child.process is not None

    def launch(self) -> None:
        """Start the process unless it runs, and don't wait until it is ready."""
        if not self.running:
            self.child.send({"do": "ready"})

    def ready(self) -> bool:
        """Whether requests can be sent without waiting; what does not run is launched."""
        self.launch()
        return self._greeted == self.child.starts or self.child.answered()

    def start(self) -> None:
        """Start the process unless it runs, and wait until it is ready. Raises ChildError when it dies or raises at its start."""
        self.launch()
        if self._greeted == self.child.starts:
            return
        self.greeting = self.child.receive(START_TIMEOUT)
        if "error" in self.greeting:
            self.child.stop()
            raise ChildError("crash", f"{self.role} cannot start: {self.greeting['error']}: {self.greeting['message']}", self.greeting["traceback"])
        self._greeted = self.child.starts

    def send(self, request: dict[str, Any]) -> None:
        """Queue a request. Raises ChildError."""
        self.start()
        self.child.send(request)

    def receive(self, timeout: float) -> dict[str, Any]:
        """The next answer. Raises ChildError; the process is then gone and the next `send` starts another."""
        return self.child.receive(timeout)

    def ask(self, request: dict[str, Any], timeout: float) -> dict[str, Any]:
        """One request and its answer. Raises ChildError."""
        self.send(request)
        return self.receive(timeout)

    def stop(self) -> None:
        self.child.stop()


class Pipeline:
    """Requests in a row to one service. When the child dies, the oldest unanswered request is to blame; the rest are sent again.

    While the child is starting, requests wait here, and whoever submits them does not.
    """

    def __init__(self, service: Service, timeout: float):
        self.service, self.timeout = service, timeout
        self.waiting: deque[dict[str, Any]] = deque()
        self.sent: deque[dict[str, Any]] = deque()
        self.dead: ChildError | None = None

    def submit(self, request: dict[str, Any]) -> None:
        self.waiting.append(request)
        if self.dead is None and self.service.ready():
            self._send()

    def _send(self) -> None:
        try:
            while self.waiting and self.dead is None:
                self.sent.append(self.waiting.popleft())
                self.service.send(self.sent[-1])
        except ChildError as error:
            self.dead = error

    def next(self) -> dict[str, Any] | ChildError:
        """The answer to the oldest request, or how the child died on it."""
        self._send()
        if self.dead is None:
            try:
                answer = self.service.receive(self.timeout)
                self.sent.popleft()
                return answer
            except ChildError as found:
                self.dead = found
        error, self.dead = self.dead, None
        self.sent.popleft()
        self.waiting.extendleft(reversed(self.sent))
        self.sent.clear()
        if self.waiting and self.service.ready():
            self._send()
        return error
