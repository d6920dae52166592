"""What must hold of `hopsearch`:

1. It keeps the contract of environments: with noise and without, with fixed graphs, with several questions.
2. A chain of searches leads to the answer; only the right answer is rewarded, and the expert finds it.
3. Fixed actions mean the same as texts.
4. A share `noise` of searches finds another entity. The same calls in the same task find the same entities.
5. `process` is 1 for a relevant query made for the first time, 0 for others, and nothing for an answer.
6. An action that cannot be read changes nothing but takes a turn, and is marked.
7. After `max_turns` the episode is truncated; each info tells the number of calls so far.
8. Several questions are answered together, in order; the reward is the share of right answers.
9. With `graphs=k`, training and evaluation share k graphs.
10. The state key tells the path. The vector does not depend on the names of the entities.
"""

from __future__ import annotations

import random

import numpy as np
import pytest

from palaestra.data import Action, Task
from palaestra.envs.probes.hopsearch import HopSearch
from palaestra.envs.probes.hopsearch_graph import (
    ENTITIES,
    RELATIONS,
    Graph,
    Question,
    Relevance,
    answer,
    ask,
    build_graph,
    chain,
    search,
)
from palaestra.errors import ContractError, RecipeError
from palaestra.testing import check_environment

PLAYER = "player"
TEXTS = ("search amber owner", "answer amber", "search birch maker", "answer amber birch", "answer amber birch cedar")


def start(seed=0, **options):
    env = HopSearch(**{"noise": 0.0, **options})
    return env, env.reset(Task(env="hopsearch", seed=seed))


def act(env, *actions):
    for action in actions:
        result = env.step({PLAYER: Action(value=action)})
    return result


def play_expert(env, result):
    steps = [result]
    while steps[-1].observations:
        steps.append(env.step({PLAYER: env.expert(PLAYER)}))
    return steps


def words(result):
    """The three names in `question: amber maker owner.`"""
    return result.observations[PLAYER].text.removeprefix("question: ").rstrip(".").split()


def truth(names, seed=0):
    """The entities that a chain of names visits."""
    graph = build_graph(40, 4, seed)
    question = Question(start=ENTITIES.index(names[0]), relations=tuple(RELATIONS.index(r) for r in names[1:]))
    return [ENTITIES[entity] for entity in chain(graph, question)]


def seed_with(hops):
    return next(seed for seed in range(100) if len(words(start(seed)[1])) == hops + 1)


@pytest.mark.parametrize(
    "options",
    [{}, {"noise": 0.0}, {"graphs": 3}, {"hops": (2, 2)}, {"entities": 6, "relations": 1, "hops": (1, 2)}],
)
def test_contract(options):  # rule 1
    check_environment(HopSearch(**options), make=lambda: HopSearch(**options))


def test_contract_of_several_questions():  # rule 1
    def make():
        return HopSearch(questions=(2, 4), max_turns=16)

    check_environment(make(), make=make, act=lambda seen, draw: Action(text=draw.choice(TEXTS)))
    assert make().action_count is None


@pytest.mark.parametrize("name", ["hops", "questions"])
def test_ranges_are_checked(name):
    with pytest.raises(RecipeError, match=f"`{name}` is 3 to 2") as caught:
        HopSearch(**{name: (3, 2)})
    assert f"{name}: [2, 3]" in caught.value.remedy
    with pytest.raises(RecipeError, match="entities"):
        HopSearch(entities=41)


# ---- graphs and questions ---------------------------------------------------------------------------------
def test_graphs_have_no_loops_of_one():
    graph = build_graph(40, 4, 7)
    assert len(set(ENTITIES)) == 40
    assert all(len(facts) == 4 and entity not in facts for entity, facts in enumerate(graph.facts))
    assert graph.facts != build_graph(40, 4, 8).facts


def test_questions_visit_no_entity_twice():
    graph = build_graph(40, 4, 0)
    lengths = []
    for seed in range(300):
        question = ask(graph, (1, 3), seed)
        lengths.append(len(question.relations))
        assert len(set(chain(graph, question))) == len(question.relations) + 1
        assert answer(graph, question) == chain(graph, question)[-1]
    assert all(70 <= lengths.count(hops) <= 130 for hops in (1, 2, 3))


def test_searches_err_as_often_as_asked():  # rule 4
    graph = build_graph(40, 4, 0)
    found = [search(graph, 3, 1, noise=0.1, seed=seed) for seed in range(4000)]
    wrong = [entity for entity in found if entity != graph.facts[3][1]]
    assert 320 <= len(wrong) <= 480
    assert len(set(wrong)) == 39
    assert found[:50] == [search(graph, 3, 1, noise=0.1, seed=seed) for seed in range(50)]
    assert search(graph, 3, 1, noise=0.0, seed=5) == graph.facts[3][1]


def test_relevance_follows_what_was_found():  # rule 5
    # 0 -maker-> 1, then owner: the search erred and found 2. Owner of 2 is relevant, owner of 1 is not.
    relevance = Relevance((Question(start=0, relations=(1, 0)),))
    assert not relevance.take(0, 0, 4)  # not the first relation
    assert relevance.take(0, 1, 2)
    assert not relevance.take(1, 0, 3)
    assert relevance.take(2, 0, 3)
    assert not relevance.take(2, 0, 5)  # the second time
    assert not relevance.take(0, 1, 6)  # also the second time, but its new result counts
    assert relevance.take(6, 0, 3)


# ---- playing ----------------------------------------------------------------------------------------------
def test_a_chain_of_searches_finds_the_answer():  # rule 2
    seed = seed_with(3)
    env, result = start(seed)
    names = words(result)
    way = truth(names, seed)
    for here, relation, there in zip(way, names[1:], way[1:], strict=False):
        result = act(env, f"search {here} {relation}")
        assert result.observations[PLAYER].text == f"{here} {relation} {there}."
        assert result.rewards == {PLAYER: 0.0}
    result = act(env, f"answer {way[-1]}")
    assert (result.rewards, result.terminated, result.info["success"]) == ({PLAYER: 1.0}, {PLAYER}, True)


def test_wrong_answers_end_without_reward():  # rule 2
    env, result = start(0)
    right = truth(words(result))[-1]
    result = act(env, f"answer {next(name for name in ENTITIES if name != right)}")
    assert (result.rewards, result.terminated, result.info["success"]) == ({PLAYER: 0.0}, {PLAYER}, False)


@pytest.mark.parametrize("seed", range(10))
def test_the_expert_wins_from_where_chance_led(seed):  # rule 2
    env, result = start(seed, max_turns=40)
    draw = random.Random(seed)
    texts = ("search amber owner", "search birch maker", "repeat", "restart", "follow owner", "follow rival")
    for _ in range(8):
        result = act(env, draw.choice(texts))
    assert play_expert(env, result)[-1].info["success"]


def test_experts_and_chance():  # rule 2
    env, wins, lucky, draw = HopSearch(), 0, 0, random.Random(0)
    for task in env.tasks("train", 300, 0):
        wins += play_expert(env, env.reset(task))[-1].info["success"]
        result = env.reset(task)
        while result.observations:
            result = act(env, draw.choice(result.observations[PLAYER].legal))
        lucky += result.info["success"]
    assert 220 <= wins <= 270  # 0.9, 0.9², 0.9³: the expert does not check what searches find
    assert 0 < lucky < 45


def test_fixed_actions_mean_texts():  # rule 3
    env, result = start(0)
    index = {name: number for number, name in enumerate(env.actions)}
    begin = words(result)[0]
    first = act(env, index["follow owner"]).observations[PLAYER].text
    there = first.rstrip(".").split()[-1]
    assert first == f"{begin} owner {there}."
    assert act(env, "follow owner").observations[PLAYER].text.startswith(f"{there} owner ")
    second = act(env, index["repeat"]).observations[PLAYER].text
    assert second.startswith(f"{there} owner ")
    assert act(env, index["restart"]).observations[PLAYER].text == f"back to {begin}."
    assert act(env, np.int64(index["repeat"])).observations[PLAYER].text == f"back to {begin}."  # nothing to repeat
    assert act(env, f" SEARCH {begin} Owner ").observations[PLAYER].text == first
    assert act(env, index["answer"]).info["success"] == (there == truth(words(result))[-1])


def test_repeating_may_correct_a_search():  # rule 4
    said = set()
    for seed in range(40):
        env, _ = start(seed, noise=0.5)
        first, second = (act(env, action).observations[PLAYER] for action in ("follow owner", "repeat"))
        again, _ = start(seed, noise=0.5)
        assert act(again, "follow owner").observations[PLAYER].text == first.text
        assert first.state_key.endswith("/once")
        said.add(second.state_key.rpartition("/")[2])
        assert (first.text == second.text) == second.state_key.endswith("/agreed")
    assert said == {"agreed", "differed"}


def test_process_marks_relevant_queries():  # rule 5
    seed = seed_with(2)
    env, result = start(seed)
    names = words(result)
    way = truth(names, seed)
    wrong = next(relation for relation in RELATIONS if relation not in names)
    marks = []
    for action in (f"search {way[0]} {wrong}", "restart", "hm", f"search {way[0]} {names[1]}", "repeat"):
        marks.append(act(env, action).info["process"][PLAYER])
    marks.append(act(env, f"search {way[1]} {names[2]}").info["process"][PLAYER])
    assert marks == [0.0, 0.0, 0.0, 1.0, 0.0, 1.0]
    last = act(env, f"answer {way[2]}").info
    assert "process" not in last
    assert (last["executable"], last["calls"], last["stratum"]) == ({PLAYER: 1.0}, {PLAYER: 4}, "4")


@pytest.mark.parametrize(
    "action",
    [
        *("", "dance", "search amber", "search amber aunt", "search atlantis owner", "answer atlantis"),
        *("answer amber birch", "follow aunt", 7, -1, np.zeros(3), None),
    ],
)
def test_unreadable_actions_cost_the_turn(action):  # rule 6
    env, before = start(0)
    after = act(env, action)
    seen, now = before.observations[PLAYER], after.observations[PLAYER]
    assert (now.text, now.state_key) == ("not understood.", seen.state_key)
    assert after.info["invalid"] == {PLAYER: True}
    assert after.info["executable"] == after.info["process"] == {PLAYER: 0.0}
    assert (now.vector != seen.vector).sum() == 1  # the turns left


def test_it_is_cut_off_after_max_turns():  # rule 7
    env, _ = start(0, max_turns=3)
    assert act(env, "follow owner", "repeat").info["stratum"] == "2"
    result = act(env, "follow owner")
    assert (result.observations, result.terminated, result.truncated) == ({}, frozenset(), {PLAYER})
    assert (result.info["success"], result.info["stratum"]) == (False, "3")
    assert result.last[PLAYER].text


def test_several_questions_are_answered_together():  # rule 8
    env, result = start(3, questions=(3, 3), max_turns=12)
    text = result.observations[PLAYER].text
    asked = [part.split(":")[1].strip(" .").split() for part in text.split("question ")[1:]]
    assert len(asked) == 3
    right = [truth(names, 3)[-1] for names in asked]
    assert act(env, f"answer {right[0]}").info["invalid"]
    assert act(env, "answer").info["invalid"]
    assert act(env, "follow owner").info["invalid"]
    wrong = next(name for name in ENTITIES if name not in right)
    result = act(env, f"answer {right[0]} {wrong} {right[2]}")
    assert result.rewards[PLAYER] == pytest.approx(2 / 3)
    assert result.info["success"] is False
    assert result.terminated == {PLAYER}


def test_the_expert_answers_several_questions():  # rule 8
    env = HopSearch(questions=(2, 6), noise=0.0, max_turns=19)
    counts = set()
    for task in env.tasks("train", 60, 0):
        steps = play_expert(env, env.reset(task))
        assert steps[-1].rewards == {PLAYER: 1.0}
        assert all(step.info["process"][PLAYER] == 1.0 for step in steps[1:-1])
        counts.add(steps[0].observations[PLAYER].text.count("question"))
    assert counts == {2, 3, 4, 5, 6}


def test_the_gist_says_what_searches_changed():  # rule 8
    env, result = start(3, questions=(3, 3), max_turns=12)
    asked = [part.split(":")[1].strip(" .").split() for part in result.observations[PLAYER].text.split("question ")[1:]]
    notes = ["", "", ""]
    for number, names in enumerate(asked):
        way = truth(names, 3)
        for hop, relation in enumerate(names[1:]):
            gist = act(env, f"search {way[hop]} {relation}").info["gist"][PLAYER]
            question = "question " if hop + 2 < len(names) else ""
            notes[number] = f"{question}{number + 1}: {' '.join([way[hop + 1], *names[hop + 2 :]])}."
            assert gist == " ".join(note for note in notes if note)


def test_questions_come_in_turn():  # rule 8
    env, result = start(3, questions=(3, 3), in_turn=True, max_turns=12)
    found, steps = [], [result]
    while steps[-1].observations:
        names = steps[-1].observations[PLAYER].text.rpartition(": ")[2].rstrip(".").split()
        if "question" in steps[-1].observations[PLAYER].text:
            found.append(truth(names, 3)[-1])
        steps.append(env.step({PLAYER: env.expert(PLAYER)}))
    assert len(found) == 3
    assert steps[0].observations[PLAYER].text.startswith("question: ")
    said = [step.observations[PLAYER].text for step in steps[1:-1]]
    assert [text for text in said if text.startswith(f"2: {found[1]}. question: ")]
    assert said[-1] == f"3: {found[2]}. answer all."
    assert steps[-2].info["gist"][PLAYER] == " ".join(f"{k}: {name}." for k, name in enumerate(found, start=1))
    assert steps[-1].info["success"]


def test_the_gist_has_the_present_question_in_turn():  # rule 8
    env, result = start(3, questions=(2, 2), in_turn=True)
    gist = act(env, "search amber owner").info["gist"][PLAYER]
    assert gist == result.observations[PLAYER].text or gist.startswith("1: ")


@pytest.mark.parametrize("form", ["answer {} {}", "answer 1: {}. 2: {}.", " Answer 1: {} 2: {}"])
def test_answers_may_be_numbered(form):  # rule 8
    env, result = start(3, questions=(2, 2))
    asked = [part.split(":")[1].strip(" .").split() for part in result.observations[PLAYER].text.split("question ")[1:]]
    assert act(env, form.format(*(truth(names, 3)[-1] for names in asked))).info["success"]


def test_fixed_graphs_recur_in_every_split():  # rule 9
    env = HopSearch(graphs=3)
    for split in ("train", "eval"):
        keys = {env.reset(task).observations[PLAYER].state_key.split("/")[0] for task in env.tasks(split, 40, 0)}
        assert keys == {"0", "1", "2"}


def test_keys_tell_what_was_followed():  # rule 10
    env, result = start(0)
    key = result.observations[PLAYER].state_key
    begin = words(result)[0]
    once = act(env, "follow owner").observations[PLAYER].state_key
    assert once != key
    assert act(env, "restart").observations[PLAYER].state_key == key
    again = act(env, f"search {begin} owner").observations[PLAYER].state_key
    assert again == once.replace("/once", "/agreed")
    assert start(1)[1].observations[PLAYER].state_key.split("/")[0] != key.split("/")[0]


def test_the_vector_says_what_was_asked_and_followed():  # rule 10
    seed = seed_with(2)
    env, result = start(seed)
    asked = [RELATIONS.index(name) for name in words(result)[1:]]
    expected = np.zeros((3, 4))
    expected[[0, 1], asked] = 1
    vector = result.observations[PLAYER].vector
    assert vector[:12].tolist() == expected.reshape(-1).tolist()
    assert vector[12:24].sum() == 0
    assert vector[24:].tolist() == [1, 0, 0, 0, 0, 1, 0, 0, 1]
    vector = act(env, f"follow {RELATIONS[2]}").observations[PLAYER].vector
    assert vector[12:24].tolist() == [0, 0, 1, 0, *[0] * 8]
    assert vector[24:].tolist() == [0, 1, 0, 0, 0, 1, 0, 0, 0.875]
    vector = act(env, *["follow owner"] * 4).observations[PLAYER].vector
    assert vector[24:29].tolist() == [0, 0, 0, 0, 1]


def test_graphs_name_what_they_have():
    graph = Graph(facts=((1, 2), (2, 0), (0, 1)))
    assert graph.entities == ENTITIES[:3]
    assert graph.relations == RELATIONS[:2]


def test_step_before_reset_is_refused():
    with pytest.raises(ContractError, match="before `reset`"):
        act(HopSearch(), "restart")
