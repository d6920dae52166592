"""Rules: (1) `detect` names every back end, with its guarantees or the reason why it cannot be used; (2) no back end
weaker than required is chosen; (3) the error says what is missing and how to get it; (4) wrong names are refused;
(5) each threat is either stopped or missed.
"""

from __future__ import annotations

import pytest

from palaestra.errors import PalaestraError, RecipeError
from palaestra.tools.sandbox import BubblewrapSandbox, Guarantees, Threat, choose, choosing, detect
from palaestra.tools.sandbox.namespaces import find_means
from tests.extras import skip_without


@pytest.fixture
def nothing_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    find_means.cache_clear()
    monkeypatch.setattr("palaestra.tools.sandbox.limits.shutil.which", lambda name: "/bin/sh" if name == "sh" else None)


def test_1_detect() -> None:
    found = {one.name: one for one in detect()}
    assert list(found) == ["bubblewrap", "docker", "wasmtime", "subprocess"]
    for one in found.values():
        assert (one.guarantees is None) == bool(one.reason)
    assert found["subprocess"].guarantees is not None and found["subprocess"].guarantees.isolation == "none"


def test_2_the_strongest_is_chosen() -> None:
    skip_without("bubblewrap")
    for require in ("isolation", "none"):
        sandbox = choose(require=require)
        assert isinstance(sandbox, BubblewrapSandbox)
        sandbox.close()


def test_2_nothing_weaker(nothing_installed: None) -> None:
    with pytest.raises(PalaestraError) as caught:
        choose(require="isolation")
    text = str(caught.value)
    assert text.startswith("sandbox.require: isolation, backend: auto")
    assert "bubblewrap: the program `bwrap` is not installed." in text  # rule 3
    assert "apt install bubblewrap" in text
    assert "subprocess: it does not isolate." in text
    assert "Candidates: bubblewrap, docker.\n" in text  # not wasmtime, which runs WebAssembly only
    with pytest.raises(PalaestraError, match="no sandbox here is strong enough"):
        choose(require="isolation", backend="subprocess")
    with pytest.raises(PalaestraError, match="`bwrap` is not installed"):
        choose(require="none", backend="bubblewrap")  # a name means that one and no other
    weak = choose(require="none")
    assert weak.guarantees().isolation == "none"
    weak.close()


def test_3_no_name_spaces(monkeypatch: pytest.MonkeyPatch) -> None:
    find_means.cache_clear()
    monkeypatch.setattr(
        "palaestra.tools.sandbox.namespaces._try", lambda means: "No permissions to create new namespace"
    )
    monkeypatch.setattr("palaestra.tools.sandbox.limits.shutil.which", lambda name: f"/usr/bin/{name}")
    with pytest.raises(PalaestraError) as caught:
        choose(backend="bubblewrap")
    find_means.cache_clear()
    assert "No permissions to create new namespace" in str(caught.value)
    assert "kernel.unprivileged_userns_clone=1" in str(caught.value)
    assert "--security-opt seccomp=unconfined" in str(caught.value)


def test_4_wrong_names() -> None:
    with pytest.raises(RecipeError, match=r"no such level of isolation.*\n.*Candidates: isolation, none"):
        choose(require="some")
    with pytest.raises(RecipeError, match=r"no sandbox `bublewrap`.*\n.*Candidates: bubblewrap"):
        choose(backend="bublewrap")


def test_5_each_threat_is_stated_once() -> None:
    with pytest.raises(ValueError, match="x: each threat must be in either"):
        Guarantees(backend="x", isolation="none", stops=frozenset())
    with pytest.raises(ValueError, match="in either `stops` or `misses`"):
        Guarantees(backend="x", isolation="none", stops=frozenset(Threat), misses={Threat.BUSY: "why"})
    assert set(choosing.ANY_PROGRAM) < set(choosing.BACKENDS)
