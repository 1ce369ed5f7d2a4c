"""The circuit breaker: cost, messages and end of an outage."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator

import millpond
import pytest
from fakes import FakeClient, FakeNamespace, unreachable
from millpond.vllm.config import ConfigError, ConnectorConfig
from millpond.vllm.session import StoreDown, StoreSession, Target

log = logging.getLogger("test-millpond")
TARGET = Target("ns", b"layout")


def until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < end, "the condition never held"
        time.sleep(0.005)


class Fixture:
    def __init__(self) -> None:
        self.namespace = FakeNamespace()
        self.client = FakeClient(self.namespace)
        config = ConnectorConfig.parse({"retry_ms": 20, "breaker_failures": 3})
        self.session = StoreSession(
            config,
            deadline_ms=100,
            connections=1,
            log=log,
            client_factory=lambda *args, **options: self.client,
        )

    def ask(self) -> list[bool]:
        return self.session.call(lambda ns: ns.contains([b"k"]))


@pytest.fixture
def fixture() -> Iterator[Fixture]:
    made = Fixture()
    yield made
    made.session.close()


def test_one_outage_is_one_line_and_ends_by_itself(
    fixture: Fixture, caplog: pytest.LogCaptureFixture
) -> None:
    fixture.session.start(TARGET)
    assert fixture.ask() == [False]
    fixture.namespace.failure = fixture.client.down = unreachable()
    for _ in range(50):
        with pytest.raises(StoreDown):
            fixture.ask()
    assert len([r for r in caplog.records if "does not answer" in r.message]) == 1
    fixture.namespace.failure = fixture.client.down = None
    until(lambda: fixture.session.up)
    assert fixture.ask() == [False]
    assert len(caplog.records) == 2
    assert "answers again" in caplog.records[1].message
    assert fixture.session.take_news() == ["connection refused"]


def test_a_dead_store_is_not_asked(fixture: Fixture) -> None:
    fixture.session.start(TARGET)
    fixture.namespace.failure = fixture.client.down = unreachable()
    with pytest.raises(StoreDown):
        fixture.ask()
    calls = len(fixture.namespace.calls)
    for _ in range(100):
        with pytest.raises(StoreDown):
            fixture.ask()
    assert len(fixture.namespace.calls) == calls


def test_late_answers_open_the_breaker_only_in_a_row(fixture: Fixture) -> None:
    fixture.session.start(TARGET)
    for failures in (2, 2, 3):
        fixture.namespace.failure = millpond.DeadlineExceeded("late")
        fixture.client.down = unreachable()
        for _ in range(failures):
            with pytest.raises(StoreDown):
                fixture.ask()
        fixture.namespace.failure = None
        assert fixture.session.up == (failures < 3)
        if failures < 3:
            fixture.ask()


def test_a_busy_store_is_not_an_outage(fixture: Fixture) -> None:
    fixture.session.start(TARGET)
    fixture.namespace.failure = millpond.Busy("later")
    for _ in range(20):
        with pytest.raises(StoreDown):
            fixture.ask()
    assert fixture.session.up


def test_an_unreachable_store_at_start_is_an_outage_not_an_error(
    fixture: Fixture, caplog: pytest.LogCaptureFixture
) -> None:
    fixture.client.down = unreachable()
    fixture.session.start(TARGET)
    assert not fixture.session.up
    assert "does not answer" in caplog.text
    fixture.client.down = None
    until(lambda: fixture.session.up)


@pytest.mark.parametrize("error", [millpond.LayoutMismatch, millpond.Unauthorized])
def test_a_refused_configuration_stops_the_start(fixture: Fixture, error: type[Exception]) -> None:
    fixture.client.down = error("digest is ab, not cd")
    with pytest.raises(ConfigError, match="refuses namespace 'ns': digest is ab, not cd"):
        fixture.session.start(TARGET)


def test_fresh_evidence_opens_without_waiting_for_the_probe(fixture: Fixture) -> None:
    fixture.session.start(TARGET)
    fixture.namespace.failure = unreachable()
    fixture.client.down = unreachable()
    with pytest.raises(StoreDown):
        fixture.ask()
    fixture.namespace.failure = fixture.client.down = None
    assert fixture.session.call(lambda ns: ns.contains([b"k"]), try_now=True) == [False]


def test_a_call_that_may_wait_outlasts_the_pause_of_the_client(fixture: Fixture) -> None:
    fixture.session.start(TARGET)
    fixture.namespace.failure = fixture.client.down = pausing = unreachable()
    pausing.retry_after = 0.2  # type: ignore[attr-defined]
    with pytest.raises(StoreDown):
        fixture.ask()
    ends = threading.Timer(0.1, lambda: setattr(fixture.client, "down", None))
    ends.start()
    fixture.namespace.failure = None
    contains = lambda ns: ns.contains([b"k"])  # noqa: E731
    with pytest.raises(StoreDown):
        fixture.session.call(contains, try_now=True, wait_s=0.1)
    assert fixture.session.call(contains, try_now=True, wait_s=1.0) == [False]
    ends.join()


def test_a_closed_session_is_down(fixture: Fixture) -> None:
    fixture.session.start(TARGET)
    fixture.session.close()
    with pytest.raises(StoreDown):
        fixture.ask()
