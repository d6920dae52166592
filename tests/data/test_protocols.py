"""Protocols with defaults: (1) a class that inherits and writes what differs is complete, and one that neither inherits
nor has everything is refused by one line; (2) nothing is run to find that out; (3) a context starts the same for all
episodes; (4) a session replays as it records, cannot be copied, remembers nothing, has no conversation; (5) an engine
serves and forks only if it says how; (6) the package's policies, contexts, engine and optimizers are complete.
"""

from __future__ import annotations

from typing import Any

import pytest

from palaestra import registry
from palaestra.data import Action, NextPrompt, Observation
from palaestra.data.protocols import Context, Engine, Optimizer, Policy, Response, Session, complete
from palaestra.engines import InProcessEngine
from palaestra.errors import ContractError
from palaestra.testing import ScriptedPolicy, TinyModel


class Short(Session):
    """Writes what has no default."""

    async def act(self, observation: Observation, *, seed: int) -> Response:
        return Response(action=Action(text="yes"))

    def record(self, observation: Observation, action: Action) -> Response:
        return Response(action=action, version=7)

    def end(self, observation: Observation | None) -> NextPrompt | None:
        return None


def test_1_complete() -> None:
    session = Short()
    assert complete(session, Session, where="here") is session
    with pytest.raises(ContractError) as caught:
        complete(object(), Context, where="context: mine")
    assert caught.value.where == "context: mine" and caught.value.what == "object has no `start`."
    assert "class object(Context)" in caught.value.remedy and "palaestra.data.protocols" in caught.value.remedy


def test_2_nothing_is_run() -> None:
    class Slow(Context):
        def start(self, renderer: Any) -> Any: ...

        @property
        def phrases(self) -> tuple[str, ...]:
            raise AssertionError("somebody ran it")

    complete(Slow(), Context, where="here")


def test_3_contexts() -> None:
    class Plain(Context):
        def start(self, renderer: Any) -> Any:
            return [renderer]

    assert Plain().start_for("renderer", ("group", 0, "player")) == ["renderer"]
    assert Plain().phrases == () and Plain().uncompressed is None


def test_4_sessions() -> None:
    session, seen = Short(), Observation(text="a")
    assert session.replay(seen, Action(text="b")).version == 7
    with pytest.raises(ContractError, match="a Short cannot be copied"):
        session.fork("key")
    assert not session.remembers() and session.history() is None
    session.hear_expert(None)  # type: ignore[arg-type]


def test_5_engines() -> None:
    class Plain(Engine):
        async def generate(self, request: Any) -> Any: ...

        def close(self, session: Any) -> None: ...

    engine = Plain()
    engine.publish("main", (), 1), engine.dismiss("main")
    with pytest.raises(ContractError, match="cannot fork a session"):
        engine.fork("a", "b")
    with pytest.raises(ContractError, match="`other` is not among them"):
        engine.serve("other", None)


def test_6_the_package_is_complete() -> None:
    tiny = TinyModel()
    for policy in (tiny, ScriptedPolicy(["yes"])):
        complete(policy, Policy, where="here")
    assert tiny.model is not None and tiny.choices and tiny.limit == 256 and ScriptedPolicy(["yes"]).model is None
    complete(tiny.engine, Engine, where="here")
    assert isinstance(tiny.engine, InProcessEngine)
    for name in registry.names("context"):
        complete(registry.part("context", name).target(), Context, where=name)
    for name in registry.names("optimizer"):
        made = registry.part("optimizer", name)
        with_module = made.target(tiny.module if "module" in made.data else tiny.module.parameters(), lr=0.1)
        assert dict(complete(with_module, Optimizer, where=name).metrics) == {}
