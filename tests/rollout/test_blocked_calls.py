"""A call of the environment that blocks the event loop is reported (1); a slow engine is not (2)."""

from __future__ import annotations

import asyncio
import time

import pytest

from palaestra.rollout.hosts import InlineCalls
from palaestra.rollout.limits import EventLoopMonitor

PATIENCE = 0.1


class Slow:
    def step(self) -> None:
        time.sleep(5 * PATIENCE)


async def monitored(*, by_environment: bool) -> None:
    with EventLoopMonitor("slow", caller=InlineCalls.__call__, patience=PATIENCE):
        await asyncio.sleep(0)
        if by_environment:
            await InlineCalls("slow", Slow())("step")
        else:
            Slow().step()


def test_1_environment(capsys: pytest.CaptureFixture[str]) -> None:
    asyncio.run(monitored(by_environment=True))
    assert "environment slow: a call has not returned for 0.1 s." in capsys.readouterr().err


def test_2_engine(capsys: pytest.CaptureFixture[str]) -> None:
    asyncio.run(monitored(by_environment=False))
    assert not capsys.readouterr().err
