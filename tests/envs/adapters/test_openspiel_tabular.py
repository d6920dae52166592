"""Rules of exploitability.

1. In Kuhn poker NashConv has its known values: 11/12 for uniform play, 0 for every equilibrium.
2. The table of a network policy has the masked probabilities that it plays at this temperature, also with memory.
3. The table of a language policy has the probabilities of whole texts and their end token, in its context.
4. An average weighs each policy by the probability that its own moves reach the information state.
5. Tables without some information state, temperatures of 0 and averages of no table are refused.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch

from palaestra.data import Action, RunSetup
from palaestra.data.protocols import Sampling
from palaestra.envs.adapters.openspiel.tables import average, nash_conv, places, uniform
from palaestra.envs.adapters.openspiel.tabular import tabular
from palaestra.envs.adapters.openspiel.world import OpenSpiel
from palaestra.errors import InvalidData
from palaestra.policies.language import LanguagePolicy
from palaestra.policies.network import NetworkPolicy
from tests.extras import needs
from tests.messages import told

pytestmark = needs("pyspiel")

PASS, BET = 0, 1


@pytest.fixture(scope="module")
def kuhn() -> OpenSpiel:
    return OpenSpiel(game="kuhn_poker", show_actions=True)


def network(environment: OpenSpiel, **options: object) -> NetworkPolicy:
    setup = RunSetup(seed=3, vector_size=environment.vector_size, action_count=environment.action_count)
    return NetworkPolicy("main", setup, **options)


def language(environment: OpenSpiel) -> LanguagePolicy:
    texts = [place.seen.text or "" for place in places(environment)]
    return LanguagePolicy("main", RunSetup(seed=1, texts=lambda: [*texts, "Bet", "Pass"]), hidden=16, layers=1, heads=2)


def equilibrium(alpha: float) -> dict[str, dict[int, float]]:
    """Kuhn's equilibria, by how often the first player bets with a jack; cards 0, 1, 2."""
    bets = {"0": alpha, "1": 0.0, "2": 3 * alpha, "0pb": 0.0, "1pb": 1 / 3 + alpha, "2pb": 1.0}
    bets |= {"0p": 1 / 3, "1p": 0.0, "2p": 1.0, "0b": 0.0, "1b": 1 / 3, "2b": 1.0}
    return {key: {PASS: 1 - share, BET: share} for key, share in bets.items()}


def test_uniform_play_in_kuhn_poker(kuhn: OpenSpiel) -> None:  # rule 1
    assert nash_conv("kuhn_poker", uniform(kuhn)) == pytest.approx(11 / 12)
    assert len(uniform(kuhn)) == 12


@pytest.mark.parametrize("alpha", [0.0, 0.2, 1 / 3])
def test_equilibria_cannot_be_exploited(alpha: float) -> None:  # rule 1
    assert nash_conv("kuhn_poker", equilibrium(alpha)) == pytest.approx(0.0, abs=1e-9)
    assert nash_conv("kuhn_poker", equilibrium(alpha) | {"0b": {PASS: 0.0, BET: 1.0}}) > 0.1


@pytest.mark.parametrize("body", ["mlp", "gru"])
def test_a_network_is_tabulated_as_it_plays(kuhn: OpenSpiel, body: str) -> None:  # rule 2
    policy = network(kuhn, body=body)
    place = {place.key: place for place in places(kuhn)}["1pb"]
    session = policy.session(context=None, sampling=Sampling(temperature=0.5), key="k")
    for key, move in place.past:
        first = {one.key: one for one in places(kuhn)}[key]
        session.record(first.seen, Action(text=first.moves[move], value=move))
    with torch.no_grad():
        logits = policy.module.step(torch.from_numpy(policy.vector(place.seen))[None], session.memory)[0]
    wanted = torch.softmax(logits[0] / 0.5, -1)
    found = tabular(policy, kuhn, temperature=0.5)
    assert [found["1pb"][PASS], found["1pb"][BET]] == pytest.approx(wanted.tolist(), abs=1e-6)
    assert max(found.outside.values()) == pytest.approx(0.0, abs=1e-6)


def test_networks_never_make_illegal_moves() -> None:  # rule 2
    leduc = OpenSpiel(game="leduc_poker")
    table = tabular(network(leduc), leduc)
    assert {len(moves) for moves in table.values()} == {2, 3}
    assert all(sum(moves.values()) == pytest.approx(1.0) for moves in table.values())


def test_language_counts_whole_texts(kuhn: OpenSpiel) -> None:  # rule 3
    policy = language(kuhn)
    by_key = {place.key: place for place in places(kuhn)}
    assert by_key["2pb"].past == (("2", PASS),)
    session = policy.session(context=None, sampling=Sampling(), key="k")
    session.record(by_key["2"].seen, Action(text="Pass"))
    acted = session.record(by_key["2pb"].seen, Action(text="Bet"))
    ids = np.concatenate([*session.unread])
    with torch.no_grad():
        logprobs = torch.log_softmax(policy.model(torch.from_numpy(ids)[None].long()).logits[0], -1)
    count = len(acted.action.tokens)
    assert policy.renderer.action("Bet")[-1] == acted.action.tokens[-1]  # the end is part of it
    wanted = sum(float(logprobs[len(ids) - count + i - 1, token]) for i, token in enumerate(acted.action.tokens))
    found = tabular(policy, kuhn)
    assert found["2pb"][BET] * (1 - found.outside["2pb"]) == pytest.approx(np.exp(wanted), rel=1e-3)
    assert 0.9 < found.outside["2pb"] < 1  # it has learned nothing
    assert sum(found["2pb"].values()) == pytest.approx(1.0)


def test_a_prompt_and_a_temperature_change_what_is_said(kuhn: OpenSpiel) -> None:  # rule 3
    policy = language(kuhn)
    plain = tabular(policy, kuhn)["0"][BET]
    assert tabular(policy, kuhn, prompt="bet {text}")["0"][BET] != pytest.approx(plain)
    assert tabular(policy, kuhn, temperature=0.3)["0"][BET] != pytest.approx(plain)


def test_averages_are_weighted_by_own_reach(kuhn: OpenSpiel) -> None:  # rule 4
    bold = uniform(kuhn).moves | {"1": {PASS: 0.1, BET: 0.9}, "1pb": {PASS: 1.0, BET: 0.0}}
    shy = uniform(kuhn).moves | {"1": {PASS: 0.8, BET: 0.2}, "1pb": {PASS: 0.0, BET: 1.0}}
    mixed = average(kuhn, [bold, shy])
    assert mixed["1"][BET] == pytest.approx((0.9 + 0.2) / 2)
    assert mixed["1pb"][BET] == pytest.approx((0.1 * 0 + 0.8 * 1) / (0.1 + 0.8))
    assert average(kuhn, [bold, shy], weights=[1, 3])["1pb"][BET] == pytest.approx(2.4 / 2.5)
    assert nash_conv(kuhn, average(kuhn, [bold, bold])) == pytest.approx(nash_conv(kuhn, bold))


def test_states_that_no_policy_reaches_have_the_plain_mean(kuhn: OpenSpiel) -> None:  # rule 4
    never = uniform(kuhn).moves | {"1": {PASS: 0.0, BET: 1.0}, "1pb": {PASS: 0.3, BET: 0.7}}
    assert average(kuhn, [never, never | {"1pb": {PASS: 0.1, BET: 0.9}}])["1pb"][BET] == pytest.approx(0.8)


def test_what_cannot_be_judged_is_refused(kuhn: OpenSpiel) -> None:  # rule 5
    with pytest.raises(InvalidData, match="every information state"):
        nash_conv(kuhn, {"0": {PASS: 1.0}})
    with told(InvalidData, "temperature"):
        tabular(network(kuhn), kuhn, temperature=0.0)
    with told(InvalidData, "`tables`"):
        average(kuhn, [])
