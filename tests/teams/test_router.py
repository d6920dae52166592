"""A team that searches, each rule pinned by a test of the same number.

1. No: the searcher's words go to the environment as a search. Yes: the answerer's as an answer. Rewards and what the
   environment tells go to who acted.
2. A verdict that is neither is invalid and taken as no; a role's own parser reads it where there is one.
3. In the last round nobody asks the verifier, and the answerer must answer; or, if the recipe says so, need not.
4. Every role reads what the environment shows and nothing of what others said; what is legal for it is its own work.
5. Nobody can do another's work, and an empty answer is the answerer's own mistake.
6. Demonstrations solve every task: no and a search until all is read, yes and the answer; wild acts are marked.
7. The roles are declared; an expert with other work and an environment of several agents are refused.
"""

from __future__ import annotations

import functools

from palaestra.data import RunSetup, Trajectory
from palaestra.envs.worlds.searchqa.world import SearchQA
from palaestra.policies.scripted import random
from palaestra.rollout.programs import demonstration_of, roles_of
from palaestra.rollout.roles import Role
from palaestra.teams.parsers import tagged
from palaestra.teams.router import demonstrate, router, verdict
from palaestra.testing import EchoEnvironment, ScriptedPolicy
from tests.teams.playing import acts, play

SMALL = functools.partial(
    SearchQA, entities=8, relations=3, hops=(1, 2), wordings=1, passages=1, passage_words=0, distractors=0.0
)
WORKERS = {"searcher": ["nobody", "nothing", "nowhere", "no more"], "answerer": ["elm"]}
ROLES = ("verifier", "searcher", "answerer")
SILENT = {role: ["?"] for role in ROLES}


def shown(played: Trajectory, role: str) -> list[str]:
    return [step.observation.text or "" for step in played.steps if step.agent == role]


def as_expert(count: int = 12, noise: float = 0.0) -> list[Trajectory]:
    return play(demonstrate, SILENT, count=count, environment=SMALL, options={"noise": noise})


def test_1_who_acts() -> None:
    (right,) = as_expert(1)
    query, answer = (next(said for role, said in acts(right) if role == name) for name in ("searcher", "answerer"))
    told = {"verifier": ["no", "yes"], "searcher": [query], "answerer": [answer]}
    (played,) = play(router, told, environment=SMALL)
    assert acts(played) == [("verifier", "no"), ("searcher", query), ("verifier", "yes"), ("answerer", answer)]
    assert (played.info["searches"], played.info["errors"]) == (1, 0)
    searched, answered = played.steps[1], played.steps[3]
    assert (searched.info["process"], searched.info["tool_call"], answered.info["tool_call"]) == (1.0, 1.0, 0.0)
    assert answered.terminated
    assert answered.reward == played.outcome == played.returns["answerer"]
    assert not any("tool_call" in step.info for step in played.steps[0::2])


def test_2_unreadable() -> None:
    (played,) = play(router, WORKERS | {"verifier": ["perhaps", "Yes"]}, environment=SMALL)
    assert [role for role, _ in acts(played)] == ["verifier", "searcher", "verifier", "answerer"]
    assert [step.info.get("invalid", 0.0) for step in played.steps] == [1.0, 0.0, 0.0, 0.0]
    parser = functools.partial(tagged, tag="verify")
    own = Role(policy=ScriptedPolicy(["<verify>yes</verify>"]), parser=parser)
    (read,) = play(router, WORKERS, roles={"verifier": own}, environment=SMALL)
    assert [role for role, _ in acts(read)] == ["verifier", "answerer"]
    assert (verdict(" NO"), verdict("yes, enough"), verdict("")) == ("no", None, None)


def test_3_the_last_round() -> None:
    for turns in (1, 2, 4):
        (played,) = play(router, WORKERS | {"verifier": ["no"] * 4}, environment=SMALL, options={"turns": turns})
        assert [role for role, _ in acts(played)] == ["verifier", "searcher"] * (turns - 1) + ["answerer"]
        assert played.error is None and played.outcome is not None
    options = {"turns": 2, "must_answer": False}
    (silent,) = play(router, WORKERS | {"verifier": ["no"] * 2}, environment=SMALL, options=options)
    assert [role for role, _ in acts(silent)] == ["verifier", "searcher"] * 2
    assert (silent.error, silent.outcome) == (None, 0.0)
    (content,) = play(router, WORKERS | {"verifier": ["no", "yes"]}, environment=SMALL, options=options)
    assert [role for role, _ in acts(content)] == ["verifier", "searcher", "verifier", "answerer"]


def test_4_views() -> None:
    (played,) = play(router, WORKERS | {"verifier": ["no", "no", "yes"]}, environment=SMALL)
    assert shown(played, "verifier")[:2] == shown(played, "searcher")
    assert shown(played, "verifier")[2:] == shown(played, "answerer")
    assert not any(set(text.split()) & {"yes", "no", "elm"} for role in ROLES for text in shown(played, role))
    choices = {step.agent: step.observation.legal or () for step in played.steps}
    assert list(choices["verifier"]) == ["yes", "no"]
    assert all(len(text.split()) == 2 for text in choices["searcher"])
    assert all(len(text.split()) == 1 for text in choices["answerer"])
    anybody = {role: random(role, RunSetup(seed=1)) for role in ROLES}
    wild = play(router, anybody, count=30, environment=SMALL)
    assert not any(step.info.get("invalid") for one in wild for step in one.steps)
    assert {one.outcome for one in wild} == {0.0, 1.0}


def test_5_own_work() -> None:
    told = {"verifier": ["no", "yes"], "searcher": ["answer elm"], "answerer": [""]}
    (played,) = play(router, told, environment=SMALL)
    assert (played.info["searches"], played.outcome) == (1, 0.0), "the searcher's answer is searched for"
    assert [step.info.get("invalid", 0.0) for step in played.steps][:4] == [0.0, 0.0, 0.0, 1.0]


def test_6_demonstrations() -> None:
    clean = as_expert()
    for played in clean:
        assert played.outcome == 1.0
        searches = played.info["gold_hops"]
        said = [text for role, text in acts(played) if role == "verifier"]
        assert said == ["no"] * searches + ["yes"]
        assert [role for role, _ in acts(played)][1::2] == ["searcher"] * searches + ["answerer"]
    assert {played.info["gold_hops"] for played in clean} == {1, 2}
    noisy = as_expert(noise=0.5)
    marks = [[step.marks.noise for step in played.steps] for played in noisy]
    assert all(own[0::2] == own[1::2] for own in marks), "the verdict of a wild act is as wild as the act"
    assert 0.2 < sum(map(sum, marks)) / sum(map(len, marks)) < 0.8
    assert any(played.outcome == 0.0 for played in noisy)


def test_7_refused() -> None:
    assert roles_of(router) == ROLES
    assert demonstration_of(router) is demonstrate
    excerpts = functools.partial(SearchQA, hops=(1, 1), wordings=3, passages=1, passage_words=4)
    failed = [played.error for played in play(demonstrate, SILENT, count=20, environment=excerpts) if played.error]
    assert failed
    assert all("`open d" in error.message and "neither a search nor an answer" in error.message for error in failed)
    pair = functools.partial(EchoEnvironment, agents=("a", "b"))
    (two,) = play(router, WORKERS | {"verifier": ["yes"]}, environment=pair)
    assert two.error is not None
    assert "asks 2 at once" in two.error.message
