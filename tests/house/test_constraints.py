"""constraints.txt, compared with pyproject.toml and with what is installed, without the network: (1) each pin is exact,
and there is one for each package; (2) each requirement of pyproject.toml and each package that it brings along is
pinned, to a version that it allows; (3) what is installed are these versions; (4) each rule can fail; (5) each
pinned version runs with the oldest Python that pyproject.toml allows, and not only with its later patches.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from importlib import metadata

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import Version

from tests.house.source_text import ROOT, project

LINES = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
PIN = re.compile(r"(?P<name>[A-Za-z0-9][\w.-]*)==(?P<version>[\w.!+]+)")
INSTALLERS = {"pip", "setuptools"}  # an environment has them before anything is installed
APART = {"openenv"}  # asks for mcp below 2, and works with the mcp 2 of the others; the Makefile installs it by itself


def faults(lines: Iterable[str]) -> list[str]:
    """Lines that are no exact pin, and pins of a package that has one already."""
    found, names = [], list[str]()
    for line in lines:
        if not line or line.startswith("#"):
            continue
        pin = PIN.fullmatch(line)
        if pin is None:
            found.append(f"no exact pin: {line}")
        elif canonicalize_name(pin["name"]) in names:
            found.append(f"pinned twice: {line}")
        else:
            names.append(canonicalize_name(pin["name"]))
    return found


def pins_of(lines: Iterable[str]) -> dict[str, str]:
    """The pinned version of each package."""
    pins = (PIN.fullmatch(line) for line in lines)
    return {canonicalize_name(pin["name"]): pin["version"] for pin in pins if pin}


def requirements() -> list[Requirement]:
    """All requirements of pyproject.toml, with those of all extras."""
    told = project()["project"]
    lines = [*told["dependencies"], *(line for lines in told["optional-dependencies"].values() for line in lines)]
    return [Requirement(line) for line in lines]


def unmet(wanted: Iterable[Requirement], pins: Mapping[str, str]) -> list[str]:
    """The requirements that no pin meets. Those of installed packages count, too, with all that they bring along."""
    found, seen, waiting = [], set[tuple[str, frozenset[str]]](), list(wanted)
    while waiting:
        one = waiting.pop()
        name = canonicalize_name(one.name)
        if (name, frozenset(one.extras)) in seen:
            continue
        seen.add((name, frozenset(one.extras)))
        if name in INSTALLERS:
            continue
        if name not in pins:
            found.append(f"no pin: {one}")
        elif not one.specifier.contains(pins[name], prereleases=True):
            found.append(f"{name}=={pins[name]} is not {one}")
        if name not in APART:
            waiting += brought_by(one)
    return sorted(found)


def brought_by(one: Requirement) -> list[Requirement]:
    """What a package that is installed requires on this machine."""
    try:
        lines = metadata.requires(one.name) or []
    except metadata.PackageNotFoundError:
        return []
    all_of_it = [Requirement(line) for line in lines]
    places: list[dict[str, str]] = [{"extra": extra} for extra in ("", *one.extras)]
    return [each for each in all_of_it if each.marker is None or any(each.marker.evaluate(at) for at in places)]


def others(pins: Mapping[str, str], installed: Mapping[str, str]) -> list[str]:
    """The packages that are installed in another version than their pin. The build of torch may be any."""
    return [
        f"{name} {installed[name]} is installed, and {version} is pinned"
        for name, version in pins.items()
        if name in installed and Version(installed[name]).public != Version(version).public
    ]


def test_each_pin_is_exact() -> None:  # rule 1
    assert not faults(LINES)


def test_all_that_is_required_is_pinned() -> None:  # rule 2
    assert not unmet(requirements(), pins_of(LINES))


def test_the_pins_are_installed() -> None:  # rule 3
    pins = pins_of(LINES)
    installed = {canonicalize_name(one.name): one.version for one in metadata.distributions()}
    assert len(installed.keys() & pins.keys()) > 50, "this is not the environment of `make develop`"
    assert not others(pins, installed)


def too_new(pins: Iterable[str], oldest: str) -> list[str]:
    """The pinned packages whose installed version does not run with this version of Python."""
    wanted = {name: metadata.metadata(name)["Requires-Python"] for name in pins}
    return [f"{name} needs Python {text}" for name, text in wanted.items() if text and oldest not in SpecifierSet(text)]


def test_each_pin_runs_with_the_oldest_python() -> None:  # rule 5
    oldest = project()["project"]["requires-python"].removeprefix(">=") + ".0"
    installed = {canonicalize_name(one.name) for one in metadata.distributions()}
    assert not too_new(pins_of(LINES).keys() & installed, oldest)
    assert too_new(["pytest"], "3.2.0")


def test_each_rule_can_fail() -> None:  # rule 4
    bad = ["a>=1", "b==1.*", "c", "d==1", "D==2", "e_f==1", "e-f==1", "g @ https://example.org/g.whl", "h==1 ; x"]
    assert [line.partition(":")[0] for line in faults(bad)] == ["no exact pin"] * 3 + ["pinned twice"] * 2 + [
        "no exact pin"
    ] * 2
    assert not faults(["# words", "", "a==1.0", "b==2!1.0.post1"])
    assert unmet([Requirement("no-such-package"), Requirement("six>=99")], pins_of(LINES)) == [
        "no pin: no-such-package",
        f"six=={pins_of(LINES)['six']} is not six>=99",
    ]
    without = {name: version for name, version in pins_of(LINES).items() if name != "pluggy"}
    assert any("no pin: pluggy" in line for line in unmet([Requirement("pytest")], without)), (
        "pytest brings pluggy along"
    )
    assert others({"a": "1.0", "torch": "2.0"}, {"a": "1.1", "torch": "2.0+cpu"}) == [
        "a 1.1 is installed, and 1.0 is pinned"
    ]
