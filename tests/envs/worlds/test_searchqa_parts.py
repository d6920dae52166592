"""What must hold of the parts of `searchqa`: graphs, passages, questions and actions.

1. Each relation leads from its source kind to its target kind, and never to the same entity. Names and aliases are
   unambiguous.
2. A question visits no entity twice. A graph that is too small for a question is an error.
3. Excerpts are whole sentences, from the one that has most words of the query on.
4. Tags are read if exactly one action is tagged, and the asked form has a thought before it. Without a search engine,
   an agent may recall searches. Reading a written action gives it back.
5. A text has the answers to several questions between semicolons, or word by word.
"""

from __future__ import annotations

import pytest

from palaestra.envs.worlds.searchqa.actions import Act, parts_of, read, write
from palaestra.envs.worlds.searchqa.graph import KINDS, RELATIONS, build_graph
from palaestra.envs.worlds.searchqa.passages import build_corpus
from palaestra.envs.worlds.searchqa.questions import ask
from palaestra.errors import InvalidData
from tests.messages import told


def test_parts_of_answers():  # rule 5
    assert parts_of("new york", 1) == ["new york"]
    assert parts_of("a; b", 2) == ["a", " b"]
    assert parts_of("a; b; c", 2) == ["a", " b"]
    assert parts_of("a b c", 2) == ["a b c", ""]


@pytest.mark.parametrize(
    ("text", "kind", "formed"),
    [
        ("<think> so </think> <search> anna friend </search>", "search", True),
        ("<think>so</think>\n<answer>elm</answer>\n", "answer", True),
        ("<search> anna friend </search>", "search", False),
        ("<think> </think> <open> D3 </open>", "open", False),
        ("well <think> so </think> <search> anna </search>", "search", False),
        ("<search> anna </search> <search> boris </search>", None, False),
        ("<search> anna", None, False),
        ("<search> </search>", None, False),
        ("<answer> <b> elm </b> </answer>", None, False),
        ("search anna", None, False),
        ("<think> so </think>", None, False),
    ],
)
def test_tags(text, kind, formed):  # rule 4
    found, good = read(text, "tags")
    assert (found.kind if found else None) == kind and good is formed


def test_searching_oneself():  # rule 4
    text = (
        "<think> one </think> <search> anna friend </search> <information> boris </information> "
        "<think> two </think> <answer> boris </answer>"
    )
    assert read(text, "tags", alone=True) == (Act(kind="answer", text="boris"), True)
    assert read(text.replace("<information> boris </information> ", ""), "tags", alone=True)[1] is False
    assert read(text, "tags")[0] is None
    assert read("<search> anna </search>", "tags", alone=True) == (None, False)


@pytest.mark.parametrize("style", ["words", "tags"])
@pytest.mark.parametrize("wanted", [Act(kind="search", text="anna friend"), Act(kind="open", text="d3")])
def test_reading_undoes_writing(style, wanted):  # rule 4
    assert read(write(wanted, style), style) == (wanted, True)
    done = Act(kind="answer")
    assert read(write(done, style), style, reader=True) == (done, True)
    assert read(write(done, style), style)[0] is None


def test_excerpts_are_whole_sentences():  # rule 3
    passage = next(iter(build_corpus(24, 10, 0.0, 1, False, 0).passages.values()))
    assert passage.excerpt("x", 0) == tuple(range(len(passage.sentences)))
    last = len(passage.sentences) - 1
    word = passage.sentences[last].text.split(":")[0]
    assert passage.excerpt(word, 2) == (last,)
    assert passage.excerpt("zzz", 1) == (0,)


def test_graphs_make_sense():  # rule 1
    graph = build_graph(24, 10, False, 3)
    assert len(set(graph.names)) == len(graph.names)
    assert len(graph) == 24 + 6 and set(graph.kinds) == set(KINDS)
    for (entity, number), target in graph.facts.items():
        relation = RELATIONS[number]
        assert (graph.kinds[entity], graph.kinds[target]) == (relation.source, relation.target)
        assert entity != target
    names = {*graph.names}
    assert not names & {alias for aliases in graph.aliases for alias in aliases}


def test_questions_visit_nothing_twice():  # rule 2
    for seed in range(100):
        graph = build_graph(24, 10, False, seed % 5)
        question = ask(graph, 4, seed)
        way = [question.gold[0][0], *(graph.facts[fact] for fact in question.gold)]
        assert len(set(way)) == 5
        assert [fact[0] for fact in question.gold[1:]] == way[1:-1]


def test_too_small_a_graph_is_said():  # rule 2
    graph = build_graph(8, 3, False, 0)
    with told(InvalidData, "too small"):
        ask(graph, 1, 0, half=2)
