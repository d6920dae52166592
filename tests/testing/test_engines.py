"""check_engine: (1) both engines of the package keep all rules; (2) one that breaks a rule is refused by its number."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from palaestra.data.protocols import Engine, Request, Response
from palaestra.engines import InProcessEngine
from palaestra.engines.remote import RemoteEngine
from palaestra.errors import ContractError
from palaestra.testing import check_engine


@pytest.mark.parametrize("make", [InProcessEngine, functools.partial(RemoteEngine, start=True)])
def test_1_ours(make: Callable[..., Engine]) -> None:
    check_engine(make)


class Broken(Engine):
    """The in-process engine, with a fault."""

    def __init__(self, models: Any, device: str, *, fault: int) -> None:
        self.inner, self.fault = InProcessEngine(models, device), fault

    async def generate(self, request: Request) -> Response:
        if self.fault == 1:
            request = replace(request, stop=())
        if self.fault == 2:
            self.inner.close(request.session)
        if self.fault == 8 and request.policy == "stranger":
            request = replace(request, policy="main")
        if self.fault == 9 and request.session == "again":
            request = replace(request, seed=-1)
        return await self.inner.generate(request)

    def close(self, session: Any) -> None:
        if self.fault != 7:
            self.inner.close(session)

    def fork(self, session: Any, new_session: Any) -> None:
        if self.fault != 5:  # the fork has an empty history
            self.inner.fork(session, new_session)

    def context(self, policy: str) -> int:
        return self.inner.context(policy)

    def publish(self, policy: str, named_tensors: Any, version: int) -> None:
        if self.fault == 3:
            version = 0
        if self.fault != 4:
            self.inner.publish(policy, named_tensors, version)


@pytest.mark.parametrize("fault", [1, 2, 3, 4, 5, 7, 8, 9])
def test_2_refused(fault: int) -> None:
    with pytest.raises(ContractError, match=f"engine, rule {fault}"):
        check_engine(functools.partial(Broken, fault=fault))
