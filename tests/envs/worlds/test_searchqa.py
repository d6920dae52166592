"""What must hold of `searchqa`:

1. It keeps the contract of environments, in both styles and all variants.
2. Without noise, the expert solves every task, also after wrong acts of others. With one plain wording, it needs one
   search for each hop. Random play solves hardly any.
3. The rewards of answers are as computed by hand: exact, by tokens or inside a text, and for aliases. For several
   hidden spans, the reward is the mean.
4. Searching, opening and answering do what they say. An act that cannot be read, or opens nothing, is an error.
5. `process` is 1 only for a new fact that the question needs. Searches, calls and errors add up.
6. Options: hops, entities, distractors, words of passages, passages, wordings, notes, turns.
7. Renamed worlds have the same facts and questions under other names.
8. Splits share the fixed graphs, but no question; or they share no graph either.
9. The closed book has no search. Its texts tell the known share of the facts that its questions need.
10. A scripted reader answers right if everything was read, except for its share of errors.
11. A share `noise` of searches goes wrong: the best passage is missing.
12. Impossible options are refused.
"""

from __future__ import annotations

import random
import re

import pytest

from palaestra.data import Action, Task
from palaestra.envs.worlds.searchqa.graph import build_graph
from palaestra.envs.worlds.searchqa.passages import build_corpus
from palaestra.envs.worlds.searchqa.questions import ask
from palaestra.envs.worlds.searchqa.world import SearchQA
from palaestra.errors import ContractError, RecipeError
from palaestra.testing import check_environment
from tests.extras import needs
from tests.messages import told

pytestmark = needs("bm25s")
PLAYER = "player"


def act(env, *texts):
    for text in texts:
        result = env.step({PLAYER: Action(text=text)})
    return result


def play(env, task, choose=None):
    """All results of an episode, played by the expert or by `choose`."""
    results = [env.reset(task)]
    while results[-1].observations:
        seen = results[-1].observations[PLAYER]
        action = env.expert(PLAYER) if choose is None else Action(text=choose(seen))
        results.append(env.step({PLAYER: action}))
    return results


def started(seed=4, **options):
    """An environment at the start of the task with this seed, and its state."""
    env = SearchQA(**options)
    env.reset(Task(env="searchqa", seed=seed))
    return env, env.snapshot()


def success(env, count=60, choose=None):
    return sum(play(env, task, choose)[-1].info["success"] for task in env.tasks("eval", count, 0)) / count


VARIANTS = [
    {},
    {"style": "tags", "notes": "queries", "graphs": 2},
    {"questions": "masked", "passage_words": 6, "wordings": 3},
    {"book": "closed", "graphs": 2, "style": "tags"},
    {"reader": True, "renamed": True, "noise": 0.5},
    {"entities": 8, "relations": 3, "hops": (4, 4), "distractors": 1.0, "passages": 1},
    {"graphs": 3, "held_out": "graphs", "notes": "none", "score": "f1", "questions": "masked", "style": "tags"},
]


@pytest.mark.parametrize("options", VARIANTS)
def test_contract(options):  # rule 1
    check_environment(SearchQA(**options), make=lambda: SearchQA(**options), episodes=3)


@pytest.mark.parametrize(
    "options", [{"graphs": 20}, {"graphs": 9, "hops": (1, 4), "style": "tags"}, {"graphs": 9, "questions": "masked"}]
)
def test_the_expert_solves_every_task(options):  # rule 2
    env = SearchQA(**options)
    assert success(env, 200) == 1.0


def test_one_search_for_each_hop():  # rule 2
    env = SearchQA(wordings=1, distractors=0.0, graphs=9, hops=(1, 4), passage_words=0)
    ends = [play(env, task)[-1].info for task in env.tasks("train", 60, 0)]
    assert all(end["success"] and end["searches"] <= end["gold_hops"] for end in ends)
    assert sum(end["searches"] for end in ends) > 0.9 * sum(end["gold_hops"] for end in ends)


def test_the_expert_goes_on_from_anywhere():  # rule 2
    env, draw = SearchQA(graphs=9, max_turns=14), random.Random(0)
    for task in env.tasks("train", 60, 0):
        result = env.reset(task)
        for _ in range(3):
            legal = [text for text in result.observations[PLAYER].legal if not text.startswith("answer")]
            result = act(env, draw.choice([*legal, "search zzz", "open d999", "??"]))
        while result.observations:
            result = env.step({PLAYER: env.expert(PLAYER)})
        assert result.info["success"]


@pytest.mark.parametrize("options", [{"graphs": 9}, {"graphs": 9, "questions": "masked"}])
def test_random_play_hardly_solves_any(options):  # rule 2
    draw = random.Random(0)
    assert success(SearchQA(**options), 100, lambda seen: draw.choice(seen.legal)) < 0.2


# ---- answers ----------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("score", "given", "reward", "right"),
    [
        ("em", "{0}", 1.0, True),
        ("em", "The {1}.", 1.0, True),
        ("em", "{0} or so", 0.0, False),
        ("f1", "{0}", 1.0, True),
        ("f1", "{0} or so", 2 * 1 / (3 + 1), False),  # one common word, also with the alias, which has two words
        ("f1", "nobody", 0.0, False),
        ("substring", "{0} or so", 1.0, True),
        ("substring", "{0}x", 0.0, False),
    ],
)
def test_answers_earn(score, given, reward, right):  # rule 3
    env, state = started(score=score, hops=(1, 1))
    end = act(env, f"answer {given.format(*state.question.answers[0])}")
    assert end.rewards[PLAYER] == pytest.approx(reward)
    assert end.info["success"] is right
    assert not end.observations and end.terminated == {PLAYER}


def test_hidden_spans_earn_their_mean():  # rule 3
    seed = next(s for s in range(0, 200, 2) if len(started(s, questions="masked")[1].question.gold) == 3)
    env, state = started(seed, questions="masked")
    one, two, three = (right[0] for right in state.question.answers)
    for given, reward in (
        (f"{one} {two} {three}", 1.0),
        (f"{one}; {two}; {three}", 1.0),
        (f"{one} x {three}", 2 / 3),
        (f"{one}; {two}", 2 / 3),
        (f"{three} {two} {one}", 1 / 3),
        (f"{one} {two}", 0.0),
    ):
        env.restore(state)
        end = act(env, f"answer {given}")
        assert end.rewards[PLAYER] == pytest.approx(reward), given
        assert end.info["success"] is (reward == 1)


# ---- acting -----------------------------------------------------------------------------------------------
def test_acts_do_what_they_say():  # rule 4
    env, state = started(hops=(2, 2), wordings=1, distractors=0.0, passage_words=2)
    graph, first = state.corpus.graph, state.question.gold[0]
    text = env.reset(Task(env="searchqa", seed=4)).observations[PLAYER].text
    assert text == f"question: {graph.names[first[0]]} {' '.join(graph.words[r] for _, r in state.question.gold)}."
    seen = act(env, f"search {graph.names[first[0]]} {graph.words[first[1]]}").observations[PLAYER].text
    assert f"found: {graph.spell(first)}." in seen
    own = state.corpus.about(first[0])
    assert f"{own.id} {own.title}: " in seen
    seen = act(env, f"open {own.id.upper()}").observations[PLAYER].text
    assert own.show(tuple(range(len(own.sentences)))) in seen
    before = env.snapshot()
    for text, error in (("open d999", "error: no passage d999."), ("find it", "error: cannot read that."),
                        ("search", "error: cannot read that."), ("answer", "error: cannot read that."),
                        ("", "error: cannot read that.")):  # fmt: skip
        result = act(env, text)
        assert result.observations[PLAYER].text.endswith(error)
        assert result.info["tool_error"] == {PLAYER: 1.0} and result.info["executable"] == {PLAYER: 0.0}
        assert bool(result.info.get("invalid")) == ("read" in error)
        env.restore(before)
    assert act(env, "search zzz").observations[PLAYER].text.endswith("nothing found.")
    assert env.snapshot().read == before.read


def test_acting_needs_a_task():
    with pytest.raises(ContractError, match="before `reset`"):
        act(SearchQA(), "answer elm")


def test_what_is_told_adds_up():  # rule 5
    env, draw = SearchQA(graphs=9, noise=0.3), random.Random(1)
    for task in env.tasks("train", 30, 1):
        results = play(env, task, lambda seen: draw.choice([*seen.legal, "??", "open d999"]))
        told = {k: sum(r.info[k][PLAYER] for r in results[1:]) for k in ("tool_call", "tool_error")}
        end = results[-1].info
        assert told == {"tool_call": end["calls"], "tool_error": end["errors"]}
        found = [r.info["found_hops"] for r in results]
        for before, now, result in zip(found, found[1:], results[1:], strict=False):
            assert result.info.get("process", {PLAYER: 0.0})[PLAYER] == float(now > before)
        assert end["stratum"] == str(end["gold_hops"]) and env.difficulty(task) == end["gold_hops"]


def test_entities_and_what_is_due():  # rule 5
    env, state = started(hops=(2, 2))
    graph, (first, second) = state.corpus.graph, state.question.gold
    names = [graph.names[graph.facts[fact]] for fact in (first, second)]
    result = act(env, f"search {graph.names[first[0]]}")
    assert result.info["entities"] == {PLAYER: 0.0}
    assert act(env, f"search {names[0]}").info["entities"] == {PLAYER: 0.5}
    assert act(env, f"answer {names[1]}").info["entities"] == {PLAYER: 1.0}
    env.reset(Task(env="searchqa", seed=4))
    due = act(env, "search zzz").info["due"][PLAYER]
    assert due == f"{graph.names[first[0]]} {graph.words[first[1]]}"


# ---- dials ------------------------------------------------------------------------------------------------
def test_dials():  # rule 6
    for hops in range(1, 5):
        env = SearchQA(hops=(hops, hops))
        assert {env.difficulty(task) for task in env.tasks("train", 20, 0)} == {float(hops)}
        assert all(len(started(seed, hops=(hops, hops))[1].question.gold) == hops for seed in range(20))
    assert {len(build_graph(n, 8, False, 0)) for n in (8, 40, 64)} == {8, 40, 64}
    counts = {share: len(build_corpus(24, 8, share, 1, False, 0).passages) for share in (0.0, 0.5, 1.0)}
    assert counts == {0.0: 24, 0.5: 36, 1.0: 48}
    lengths = []
    for words in (4, 12, 0):
        env, state = started(passage_words=words, passages=2, notes="none")
        text = act(env, f"search {state.question.start} person town").observations[PLAYER].text
        lengths.append(len(text.split()))
        assert len(re.findall(r" d\d+ ", text)) == 2
    assert lengths[0] < lengths[1] < lengths[2]
    texts = {}
    for notes in ("none", "queries", "found"):
        env, state = started(notes=notes)
        texts[notes] = act(env, f"search {state.question.start} person").observations[PLAYER].text
    assert "searched: " in texts["queries"] and "searched: " not in texts["none"] + texts["found"]
    env, _ = started(max_turns=2)
    assert act(env, "search a", "search b").truncated == {PLAYER}


def test_texts_are_short():  # rule 6
    env = SearchQA(graphs=20)
    lengths = [
        len(result.observations[PLAYER].text.split())
        for task in env.tasks("train", 60, 0)
        for result in play(env, task)[:-1]
    ]
    assert max(lengths) <= 100


def test_renamed_worlds_have_the_same_facts():  # rule 7
    for seed in range(20):
        plain, other = (build_graph(24, 10, renamed, seed) for renamed in (False, True))
        assert plain.facts == other.facts and plain.kinds == other.kinds
        entities = [n for n, kind in enumerate(plain.kinds) if kind != "year"]
        assert not {plain.names[n] for n in entities} & {other.names[n] for n in entities}
        assert not set(plain.words) & set(other.words)
        assert ask(plain, 3, seed).gold == ask(other, 3, seed).gold
    assert success(SearchQA(renamed=True, graphs=9), 60) == 1.0


@pytest.mark.parametrize("questions", ["hops", "masked"])
def test_held_out_questions(questions):  # rule 8
    env, asked = SearchQA(graphs=2, questions=questions), {}
    for split in ("train", "eval"):
        asked[split] = set()
        for task in env.tasks(split, 150, 0):
            env.reset(task)
            state = env.snapshot()
            asked[split].add((state.corpus.graph.seed, state.question.short))
    assert not asked["train"] & asked["eval"]
    assert {graph for graph, _ in asked["train"]} == {graph for graph, _ in asked["eval"]} == {0, 1}


def test_held_out_graphs():  # rule 8
    env = SearchQA(graphs=3, held_out="graphs")
    graphs = {}
    for split in ("train", "eval"):
        graphs[split] = set()
        for task in env.tasks(split, 60, 0):
            env.reset(task)
            graphs[split].add(env.snapshot().corpus.graph.seed)
    assert graphs == {"train": {0, 1, 2}, "eval": {3, 4, 5}}


def test_the_closed_book():  # rule 9
    env, state = started(book="closed", graphs=2, known=1.0, hops=(2, 2))
    assert act(env, "search anna").info["invalid"] and not act(env, "open d1").info["calls"]
    assert act(env, f"answer {state.question.answers[0][0]}").info["success"]
    texts = env.corpus_texts()
    graph = state.corpus.graph
    for fact in state.question.gold:
        assert any(text.startswith(f"{graph.names[fact[0]]}:") for text in texts)
    assert env.reset(env.tasks("train", 1, 0)[0]).info["known_hops"] == 2


def test_a_part_of_the_book():  # rule 9
    told, all_of_it = SearchQA(book="part", graphs=3, known=0.6), SearchQA(book="part", graphs=3, known=1.0)
    some, every = (sum(len(text.split()) for text in env.corpus_texts()) for env in (told, all_of_it))
    assert 0.4 < some / every < 0.75
    assert SearchQA(graphs=3).corpus_texts() == SearchQA(graphs=0).corpus_texts() == []
    env, state = started(book="part", graphs=3, hops=(1, 1))
    assert act(env, f"search {state.question.start}").info["calls"] == 1
    infos = [told.reset(task).info for task in told.tasks("train", 300, 0)]
    assert 0.5 < sum(i["known_hops"] for i in infos) / sum(i["gold_hops"] for i in infos) < 0.7


def test_the_reader():  # rule 10
    env, _ = started(reader=True)
    end = act(env, "answer")
    assert end.rewards[PLAYER] == 0 and not end.info["success"]
    assert success(SearchQA(reader=True, graphs=9), 60) == 1.0
    assert 0.6 < success(SearchQA(reader=True, reader_error=0.3, graphs=9), 200) < 0.8


def test_noise():  # rule 11
    def misses(noise):
        count = 0
        for seed in range(400):
            env, state = started(seed, noise=noise, graphs=5)
            best = state.corpus.search(state.question.start, 3)[0]
            act(env, f"search {state.question.start}")
            count += best not in env.snapshot().seen
        return count / 400

    assert misses(0.0) == 0 and 0.24 < misses(0.3) < 0.36
    assert misses(0.3) == misses(0.3)
    assert success(SearchQA(noise=0.3, graphs=9), 60) > 0.9  # it searches again


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"hops": (3, 2)}, r"`hops` is 3 to 2(.|\n)*Write `hops: \[2, 3\]`"),
        ({"masks": (4, 1)}, r"`masks` is 4 to 1"),
        ({"hops": (1, 5)}, "hops"),
        ({"entities": 7}, "entities"),
        ({"style": "json"}, "style"),
    ],
)
def test_options_are_checked(options, message):  # rule 12
    with pytest.raises(RecipeError, match=message):
        SearchQA(**options)


@pytest.mark.parametrize(
    ("options", "found"),
    [
        ({"book": "closed"}, "`graphs: 0`"),
        ({"book": "part", "graphs": 2, "held_out": "graphs"}, "`held_out: graphs`"),
        ({"book": "closed", "graphs": 2, "reader": True}, "`reader: true`"),
    ],
)
def test_options_must_fit_the_book(options, found):  # rule 12
    with told(RecipeError, found):
        SearchQA(**options)
