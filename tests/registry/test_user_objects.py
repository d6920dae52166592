"""What must hold of names of objects: (1) an importable object is named by its module, any other by a module of this
process; (2) one object has one name, and two have two; (3) the registry finds the object, and says what is wrong in
another process."""

from __future__ import annotations

import sys

import pytest

from palaestra import registry
from palaestra.algebra import standardize
from palaestra.errors import UnknownName
from palaestra.registry.user_objects import MODULE, name_of
from tests.messages import told


def made(value: int):
    def local(table):
        return value

    return local


def test_importable_objects():  # rule 1
    assert name_of(standardize) == f"{standardize.__module__}:standardize"
    assert name_of(made(1)).startswith(f"{MODULE}:local")


def test_one_name_each():  # rule 2
    first, second = made(1), made(2)
    names = [name_of(one) for one in (first, second, first)]
    assert names[0] == names[2] != names[1]


def test_the_registry_finds_it(monkeypatch):  # rule 3
    def of_this_test(table):
        return 3

    name = name_of(of_this_test)
    assert registry.part("advantage", name).target(None) == 3
    monkeypatch.delitem(sys.modules, MODULE)
    with told(UnknownName, "object of another program"):
        registry.part("advantage", name)


@pytest.mark.parametrize("thing", [lambda: 0, type("Odd name", (), {})])
def test_odd_names(thing):  # rule 1
    assert registry.part("advantage", name_of(thing)).name.partition(":")[2].isidentifier()
