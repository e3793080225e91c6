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

    @property
    def running(self) -> bool:
        return self.child.process is not None

    def start(self) -> None:
        """Start the process unless it runs. Raises ChildError when it dies or raises at its start."""
        if not self.running:
            self.greet()

    def greet(self) -> None:
        self.greeting = self.child.ask({"do": "ready"}, START_TIMEOUT)
        if "error" in self.greeting:
            self.child.stop()
            raise ChildError("crash", f"{self.role} cannot start: {self.greeting['error']}: {self.greeting['message']}", self.greeting["traceback"])

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
    """Requests in a row to one service. When the child dies, the oldest unanswered request is to blame; the rest are sent again."""

    def __init__(self, service: Service, timeout: float):
        self.service, self.timeout = service, timeout
        self.pending: deque[dict[str, Any]] = deque()
        self.dead: ChildError | None = None

    def submit(self, request: dict[str, Any]) -> None:
        self.pending.append(request)
        self._send(request)

    def _send(self, request: dict[str, Any]) -> None:
        if self.dead is None:
            try:
                self.service.send(request)
            except ChildError as error:
                self.dead = error

    def next(self) -> dict[str, Any] | ChildError:
        """The answer to the oldest request, or how the child died on it."""
        error = self.dead
        if error is None:
            try:
                answer = self.service.receive(self.timeout)
                self.pending.popleft()
                return answer
            except ChildError as found:
                error = found
        self.pending.popleft()
        self.dead = None
        for request in self.pending:
            self._send(request)
        return error
