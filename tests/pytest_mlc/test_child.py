"""Children that answer, raise, die, hang, and print."""

import sys

import numpy as np
import pytest

from pytest_mlc.child import ChildError
from pytest_mlc.service import Pipeline, Service

ROLE = '''
import ctypes, os, sys, time
def serve(request):
    do = request["do"]
    if do == "ready":
        while os.path.exists(os.environ.get("WAIT_WHILE", "")):
            time.sleep(0.01)
        yield {"pid": os.getpid()}
    elif do == "echo":
        print("noise on standard output")
        yield request["value"]
    elif do == "raise":
        raise ValueError("no luck")
    elif do == "crash":
        sys.stderr.write("last words\\n")
        ctypes.string_at(0)
    elif do == "exit":
        os._exit(3)
    elif do == "hang":
        time.sleep(600)
'''


@pytest.fixture
def service(tmp_path, monkeypatch):
    """A child of a role made for the test."""
    (tmp_path / "role_for_test.py").write_text(ROLE)
    starter = "import pytest_mlc.worker as w, sys; w.ROLES['test'] = 'role_for_test'; w.main('test')"
    (tmp_path / "start.py").write_text(starter)
    monkeypatch.syspath_prepend(str(tmp_path))
    found = Service("test")
    found.child.command = [sys.executable, str(tmp_path / "start.py")]
    yield found
    found.stop()


def test_answers_come_back_and_prints_do_not_disturb(service):
    array = np.arange(5, dtype=np.float16)
    assert np.array_equal(service.ask({"do": "echo", "value": array}, 30), array)


def test_an_exception_is_an_answer(service):
    answer = service.ask({"do": "raise"}, 30)
    assert answer["error"] == "ValueError" and answer["message"] == "no luck" and "Traceback" in answer["traceback"]
    assert service.child.starts == 1


@pytest.mark.parametrize("do, detail", [("crash", "signal 11 (SIGSEGV)"), ("exit", "exit code 3")])
def test_a_death_is_told_with_its_signal_and_the_next_request_gets_a_new_child(service, do, detail):
    with pytest.raises(ChildError) as found:
        service.ask({"do": do}, 30)
    assert (found.value.kind, found.value.detail) == ("crash", detail)
    assert do != "crash" or "last words" in found.value.log
    assert service.ask({"do": "echo", "value": 1}, 30) == 1 and service.child.starts == 2


def test_silence_is_ended_by_the_watchdog(service):
    service.start()
    with pytest.raises(ChildError) as found:
        service.ask({"do": "hang"}, 0.5)
    assert found.value.kind == "hang" and not service.running


def test_large_messages_queued_both_ways_do_not_block(service):
    big = np.zeros(3_000_000, np.uint8)
    pipeline = Pipeline(service, 60)
    for k in range(6):
        pipeline.submit({"do": "echo", "value": (k, big)})
    assert [pipeline.next()[0] for _ in range(6)] == list(range(6))


def test_requests_wait_while_a_child_starts_and_who_submits_them_does_not(service, tmp_path):
    door = tmp_path / "door"
    door.touch()
    service.child.environment["WAIT_WHILE"] = str(door)
    pipeline = Pipeline(service, 30)
    for k in range(3):
        pipeline.submit({"do": "echo", "value": k})
    assert not service.ready() and len(pipeline.waiting) == 3
    door.unlink()
    assert [pipeline.next() for _ in range(3)] == [0, 1, 2] and service.child.starts == 1 and service.greeting["pid"] == service.child.process.pid


def test_a_child_that_dies_as_it_starts_is_told_at_the_oldest_request_and_tried_again(service):
    pipeline = Pipeline(service, 30)
    command, service.child.command = service.child.command, [sys.executable, "-c", "import sys; sys.exit(4)"]
    for k in range(2):
        pipeline.submit({"do": "echo", "value": k})
    died = pipeline.next()
    assert isinstance(died, ChildError) and died.detail == "exit code 4"
    service.stop()
    service.child.command = command
    assert pipeline.next() == 1


def test_in_a_pipeline_only_the_culprit_is_lost(service):
    pipeline = Pipeline(service, 30)
    for request in ({"do": "echo", "value": 1}, {"do": "exit"}, {"do": "echo", "value": 2}, {"do": "crash"}, {"do": "echo", "value": 3}):
        pipeline.submit(request)
    found = [pipeline.next() for _ in range(5)]
    assert found[0] == 1 and found[2] == 2 and found[4] == 3
    assert [type(found[k]) for k in (1, 3)] == [ChildError, ChildError] and service.child.starts == 3


def test_answers_given_before_a_death_are_not_lost(service):
    """The child is dead before the next request is sent, and its answers lie unread in the pipe."""
    service.start()
    pipeline = Pipeline(service, 30)
    for request in ({"do": "echo", "value": 1}, {"do": "echo", "value": 2}, {"do": "exit"}):
        pipeline.submit(request)
    service.child.process.wait()
    pipeline.submit({"do": "echo", "value": 3})
    found = [pipeline.next() for _ in range(4)]
    assert found[:2] == [1, 2] and isinstance(found[2], ChildError) and found[3] == 3
