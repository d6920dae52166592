"""Abilities of environments: (1) without a list they are what the members are, and an old `expert = None` is none;
(2) of an ability all members are there or the environment is refused; (3) a list is what counts, and one that names
what is not there is refused; (4) an object may list less than its class; (5) `require` says what is missing and how to
write it; (6) asking runs no property; (7) who passes on what it is asked has the abilities of the other; (8) a list of
the class that leaves out what is there is refused by `check_abilities`; (9) every environment of the package lists its
abilities, and its class has their methods.
"""

from __future__ import annotations

import inspect
from types import SimpleNamespace
from typing import Any

import pytest

from palaestra import registry
from palaestra.data import Action
from palaestra.data.abilities import (
    ABILITIES,
    abilities_of,
    check_abilities,
    has,
    members_of,
    require,
    sizes_of,
    without,
)
from palaestra.errors import ContractError, MissingExtra


class Plain:
    """Has no list."""

    agents = ("a",)

    def tasks(self, split: str, n: int, seed: int) -> list[Any]:
        return []

    def expert(self, agent: str) -> Action:
        return Action(text="yes")


class Listed(Plain):
    abilities: tuple[str, ...] = ("tasks", "expert")

    def __init__(self, *, expert: bool = True) -> None:
        if not expert:
            self.abilities = without(self.abilities, "expert")


def test_members_tell_where_there_is_no_list() -> None:  # rule 1
    env = Plain()
    assert abilities_of(env) == abilities_of(Plain) == {"tasks", "expert"}
    env.expert = None  # type: ignore[assignment, method-assign]
    assert abilities_of(env) == {"tasks"} and not has(env, "expert")
    assert sizes_of(env) == (None, None)
    env.vector_size, env.action_count = None, 3  # type: ignore[attr-defined]
    assert has(env, "vector") and sizes_of(env) == (None, 3)


@pytest.mark.parametrize(
    ("member", "lacking"),
    [("snapshot", "restore"), ("restore", "snapshot"), ("guidance", "reference"), ("action_count", "vector_size")],
)
def test_halves_are_refused(member: str, lacking: str) -> None:  # rule 2
    env: Any = SimpleNamespace(**{member: lambda *given: None})
    with pytest.raises(ContractError, match=f"it has `{member}` but no `{lacking}`") as caught:
        abilities_of(env)
    assert lacking in caught.value.remedy
    env.abilities = ()
    assert abilities_of(env) == frozenset()


def test_the_list_counts() -> None:  # rule 3
    env: Any = SimpleNamespace(tasks=list, expert=lambda: None, abilities=("tasks",))
    assert abilities_of(env) == {"tasks"}
    env.abilities = ("tasks", "snapshot")
    with pytest.raises(ContractError, match="`abilities` list `snapshot`, but it has no `snapshot`"):
        abilities_of(env)
    for wrong, said in (
        (("task",), "no ability is called `task`"),
        (["tasks"], "a tuple of names"),
        ("tasks", "tuple"),
    ):
        env.abilities = wrong
        with pytest.raises(ContractError, match=said):
            abilities_of(env)


def test_an_object_lists_less_than_its_class() -> None:  # rule 4
    assert has(Listed, "expert") and has(Listed(), "expert") and not has(Listed(expert=False), "expert")
    check_abilities(Listed(expert=False))


def test_what_is_required() -> None:  # rule 5
    env = Listed()
    assert require(env, "tasks", where="here") is env
    with pytest.raises(ContractError) as caught:
        require(env, "guidance", where="here")
    assert caught.value.where == "here" and "`Listed` has no `guidance`" in caught.value.what
    assert "a method `guidance(trajectory, *, seed) -> str | None` and a method `reference(task)" in caught.value.remedy
    with pytest.raises(AssertionError):
        has(env, "restore")  # belongs to `snapshot`


def test_no_property_runs() -> None:  # rule 6
    class Slow:
        @property
        def phrases(self) -> list[str]:
            raise AssertionError("somebody ran it")

    assert has(Slow(), "phrases") and has(Slow, "phrases")


def test_who_passes_on_what_it_is_asked() -> None:  # rule 7
    class Around:
        def __init__(self, inner: Any) -> None:
            self.inner = inner

        def __getattr__(self, name: str) -> Any:
            return getattr(self.inner, name)

    assert abilities_of(Around(Plain())) == abilities_of(Around(Listed())) == {"tasks", "expert"}
    assert abilities_of(Around(Listed(expert=False))) == {"tasks"}


def test_lists_that_leave_something_out() -> None:  # rule 8
    class Short(Plain):
        abilities = ("tasks",)

    assert abilities_of(Short()) == {"tasks"}
    with pytest.raises(ContractError, match="has the ability `expert`, but its list") as caught:
        check_abilities(Short())
    assert "abilities = ('tasks', 'expert')" in caught.value.remedy
    check_abilities(Plain())
    more = Short()
    more.abilities = ("tasks", "expert")  # type: ignore[assignment]
    with pytest.raises(ContractError, match="leaves it out"):
        check_abilities(more)


@pytest.mark.parametrize("name", registry.names("environment"))
def test_the_package_lists_abilities(name: str) -> None:  # rule 9
    try:
        cls: Any = registry.part("environment", name).target
    except MissingExtra as error:
        pytest.skip(str(error))
    assert "abilities" in vars(cls)
    for ability in cls.abilities:
        methods = [one for one in members_of(ability) if inspect.isfunction(vars(ABILITIES[ability]).get(one))]
        assert all(callable(getattr(cls, method)) for method in methods)
