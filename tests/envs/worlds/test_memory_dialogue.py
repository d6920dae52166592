"""What must hold of `memory_dialogue`:

1. It keeps the contract of environments, in all roles, styles and variants.
2. Without noise, the expert answers every question from its own memory, and it repairs the memory of others. Random
   play answers hardly any.
3. An operation changes nothing if the memory is full, the entry is unknown, or it cannot be read. The agent is told so,
   and the sentence is over.
4. A right answer has the right words, in any order. F1 is as computed by hand. The reward is the mean over questions,
   for both roles.
5. A selection decides which entries are shown. Other entries cannot be selected. A second act that is no answer gives
   the question up.
6. Questions are answered from the memory alone: with an empty memory, nothing is known.
7. `process` is 1 only for the operation that keeps the memory right: adding a second dog to an entry is right,
   replacing the first dog is not.
8. Options: parts, facts, people, attributes, questions, kinds, repeats, chatter, capacity, shown, view, wording.
9. Renamed and reworded talks have the same events and questions. Misheard talks have the same truth.
10. A share `noise` of sentences is misheard, and then the expert makes mistakes.
11. An agent that always adds fills a small memory, and answers worse than one that keeps the memory right.
12. Splits differ. Impossible options are refused.
"""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace

import pytest

from palaestra.data import Action, Task
from palaestra.envs.worlds.memory_dialogue.story import KINDS, Plan, build
from palaestra.envs.worlds.memory_dialogue.topics import ATTRIBUTES, topics_of
from palaestra.envs.worlds.memory_dialogue.world import MemoryDialogue
from palaestra.errors import ContractError, RecipeError
from palaestra.testing import check_environment
from tests.messages import told

PLAYER = "player"
DOG = topics_of(2, 4, False)[1]  # of anna
PLAN = Plan(facts=12, people=2, attributes=4, capacity=6, questions=3, kinds=KINDS, repeats=0.1, chatter=0.1, noise=0.0,
            wording="plain", renamed=False)  # fmt: skip


def play(env, task, choose=None):
    """All results of an episode, played by the expert or by `choose`."""
    results = [env.reset(task)]
    while results[-1].observations:
        ((agent, seen),) = results[-1].observations.items()
        action = env.expert(agent) if choose is None else Action(text=choose(env, seen))
        results.append(env.step({agent: action}))
    return results


def started(seed=4, **options):
    """An environment at the start of the task with this seed, and its story."""
    env = MemoryDialogue(**options)
    env.reset(Task(env="memory_dialogue", seed=seed))
    return env, env.snapshot().story


def asked(seed=4, bank=(), **options):
    """An environment at its first question, with these entries."""
    env, story = started(seed, **options)
    state = env.snapshot()
    entries = tuple(enumerate(bank, start=1))
    env.restore(replace(state, place=len(story.events), bank=replace(state.bank, entries=entries)))
    return env, story


def act(env, *texts, agent=PLAYER):
    for text in texts:
        result = env.step({agent: Action(text=text)})
    return result


def success(env, count=60, choose=None):
    return sum(play(env, task, choose)[-1].info["success"] for task in env.tasks("eval", count, 0)) / count


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"roles": "two", "style": "calls", "wording": "varied", "view": "part"},
        {"roles": "manager", "capacity": 2, "noise": 0.3},
        {"roles": "answerer", "shown": 2, "renamed": True},
        {"select": False, "score": "f1", "wording": "short", "questions": 1},
    ],
)
def test_contract(options):  # rule 1
    check_environment(MemoryDialogue(**options), make=lambda: MemoryDialogue(**options), episodes=3)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"roles": "two", "style": "calls", "wording": "varied"},
        {"roles": "manager", "capacity": 3},
        {"roles": "answerer", "select": False},
        {"parts": 8, "people": 4, "attributes": 6, "capacity": 12, "repeats": 0.3},
    ],
)
def test_the_expert_answers_everything(options):  # rule 2
    assert success(MemoryDialogue(**options), 200 if len(options) < 3 else 60) == 1.0


def test_random_play_hardly_answers_anything():  # rule 2
    draw = random.Random(0)
    assert success(MemoryDialogue(), 100, lambda env, seen: draw.choice(seen.legal)) < 0.05
    assert success(MemoryDialogue(roles="manager"), 100, lambda env, seen: draw.choice(seen.legal)) < 0.2


def test_the_expert_mends_what_others_left():  # rule 2
    draw, won = random.Random(0), 0
    env = MemoryDialogue(parts=5, repeats=0.3)
    for task in env.tasks("train", 60, 0):
        result = env.reset(task)
        for _ in range(4):
            junk = ["add the soup was cold", "add anna home nowhere and boris job", "??", "delete 1", "update 1 x"]
            result = act(env, draw.choice([*result.observations[PLAYER].legal, *junk]))
        while result.observations:
            result = env.step({PLAYER: env.expert(PLAYER)})
        won += result.info["success"]
    assert won >= 59


@pytest.mark.parametrize(
    "text",
    ["remember", "", "add", "update 1", "update x y", "delete", "delete 1 2", "noop now", "select 1", "answer elm"],
)
def test_what_cannot_be_read(text):  # rule 3
    env, _ = started()
    before = env.snapshot()
    result = act(env, text)
    assert result.info["invalid"] == {PLAYER: True} and result.info["executable"] == {PLAYER: 0.0}
    assert result.info["operation"] == {PLAYER: "none"} and result.info["process"] == {PLAYER: 0.0}
    assert result.observations[PLAYER].text.startswith("error: cannot read that. ")
    assert env.snapshot().bank == before.bank and env.snapshot().place == before.place + 1


def test_what_cannot_be_done():  # rule 3
    env, _ = started(capacity=2)
    result = act(env, "delete 3")
    assert "invalid" not in result.info and result.info["executable"] == {PLAYER: 0.0}
    assert result.observations[PLAYER].text.startswith("error: no entry 3. fact: ")
    assert act(env, "add a", "add b", "add c").observations[PLAYER].text.startswith("error: memory is full. ")
    assert env.snapshot().bank.entries == ((1, "a"), (2, "b"))


def test_acting_needs_a_task():
    with pytest.raises(ContractError, match="before `reset`"):
        act(MemoryDialogue(), "noop")


# ---- questions --------------------------------------------------------------------------------------------
def find(kind, length, **options):
    """A seed whose first question is of this kind and has so many words in its answer."""
    for seed in range(0, 4000, 2):
        _, story = started(seed, **options)
        if story.questions[0].kind == kind and len(story.questions[0].answer) == length:
            return seed, story.questions[0].answer
    raise AssertionError(kind)


@pytest.mark.parametrize(
    ("score", "given", "reward"),
    [
        ("em", "{0} {1}", 1.0),
        ("em", "{1} and {0}.", 1.0),
        ("em", "{0}", 0.0),
        ("em", "{0} {1} {1}", 0.0),
        ("f1", "{0}", 2 * 1 / (1 + 2)),
        ("f1", "{0} {1} elsewhere", 2 * 2 / (3 + 2)),
        ("f1", "unknown", 0.0),
    ],
)
def test_answers_earn(score, given, reward):  # rule 4
    seed, answer = find("two", 2)
    env, _ = asked(seed, score=score)
    result = act(env, f"answer {given.format(*answer)}")
    assert result.rewards[PLAYER] == pytest.approx(reward / 3)
    assert result.info["process"] == {PLAYER: pytest.approx(reward)}
    assert result.info["question"] == {PLAYER: "two"} and result.info["score"] == pytest.approx(reward / 3)


def test_the_mean_goes_to_both_roles():  # rule 4
    env = MemoryDialogue(roles="two")
    for task in env.tasks("train", 20, 0):
        results = play(env, task)
        assert all(set(r.rewards) <= {"manager", "answerer"} for r in results)
        totals = [sum(r.rewards.get(agent, 0.0) for r in results) for agent in ("manager", "answerer")]
        assert totals == pytest.approx([1.0, 1.0])
        assert results[-1].terminated == {"manager", "answerer"}
    env = MemoryDialogue(roles="manager")
    assert [r.rewards for r in play(env, task)[1:]] == [{"manager": 0.0}] * 11 + [{"manager": pytest.approx(1.0)}]


def test_right_and_wrong_answers():  # rule 4
    env, story = asked()
    first, second, third = (" ".join(question.answer) for question in story.questions)
    end = act(env, f"answer {first}", "answer nothing", f"answer {third}")
    assert end.info["score"] == pytest.approx(2 / 3) and not end.info["success"] and not end.observations
    env, _ = asked()
    assert act(env, f"answer {first}", f"answer {second}", f"answer {third}").info["success"]


def test_selections():  # rule 5
    env, _ = asked(bank=("anna home elm", "anna dog rex", "boris job baker"))
    result = act(env, "select 3 1")
    assert result.observations[PLAYER].text.endswith("memory: 1: anna home elm. 3: boris job baker.")
    assert not any(text.startswith("select") for text in result.observations[PLAYER].legal)
    result = act(env, "select 1")
    assert env.snapshot().asked == 1 and result.info["score"] == 0
    result = act(env, "select 9")
    assert (
        "error: no entry 9." in result.observations[PLAYER].text and "2: anna dog" in result.observations[PLAYER].text
    )
    assert act(env, "noop").info["invalid"] == {PLAYER: True} and env.snapshot().asked == 2
    env, _ = asked(select=False)
    assert act(env, "select 1").info["invalid"] and env.snapshot().asked == 1


def test_only_the_memory_is_seen():  # rule 6
    env, story = asked(seed=find("single", 1)[0])
    seen = env.step({PLAYER: Action(text="select 1")}).observations[PLAYER]
    assert seen.text == f"error: no entry 1. question: {story.questions[0].text} memory: nothing."
    assert env.expert(PLAYER).text == "answer unknown"

    def forget(env, seen):
        return "noop" if seen.text.startswith("fact") else env.expert(PLAYER).text

    assert success(MemoryDialogue(kinds=("single", "two", "time")), 60, forget) < 0.05


# ---- which operation was right ----------------------------------------------------------------------------
def test_adding_up_is_an_update():  # rule 7
    for seed in range(0, 2000, 2):
        env, story = started(seed, chatter=0.0, repeats=0.0)
        if [event.happening for event in story.events[:2]] == ["start", "more"] and story.events[0].topic is DOG:
            break
    one, two = (event.value for event in story.events[:2])
    first = act(env, f"add anna has {one}")
    assert first.info["process"] == {PLAYER: 1.0} and first.info["wanted"] == {PLAYER: "add"}
    after_first = env.snapshot()
    for text, right in (
        (f"update 1 anna has dogs {one} and {two}", 1.0),
        (f"update 1 anna dog {two}", 0.0),  # the first dog is lost
        (f"add anna dog {two}", 0.0),  # true, but in a second entry
        ("delete 1", 0.0),
        ("noop", 0.0),
    ):
        env.restore(after_first)
        result = act(env, text)
        assert result.info["process"] == {PLAYER: right}, text
        assert result.info["wanted"] == {PLAYER: "update"} and result.info["operation"] == {PLAYER: text.split()[0]}


def test_the_expert_is_always_right():  # rule 7
    env, kinds = MemoryDialogue(roles="two", repeats=0.2), Counter()
    for task in env.tasks("train", 40, 0):
        for result in play(env, task)[1:]:
            ((_, process),) = result.info["process"].items()
            assert process == 1.0
            kinds.update(result.info.get("wanted", {}).values())
    assert set(kinds) == {"add", "update", "delete", "noop"}


# ---- dials ------------------------------------------------------------------------------------------------
def test_dials():  # rule 8
    env, story = started(parts=2, facts=3, people=1, attributes=2, questions=4, kinds=("single",))
    assert len(story.events) == 6 and len(story.topics) == 2 and len(story.questions) == 4
    for name, share in (("repeats", "again"), ("chatter", "chatter")):
        events = Counter(e.happening for s in range(60) for e in build(replace(PLAN, **{name: 0.5}), s).events)
        assert 0.4 < events[share] / events.total() < 0.6
    env, story = started(view="part")
    heard = ". ".join(event.text for event in story.events[4:8])
    result = act(env, *["noop"] * 5)
    assert f"part 2: {heard}. fact: {story.events[5].text}." in result.observations[PLAYER].text
    env, _ = asked(bank=("anna home elm", "anna dog rex", "boris job baker"), shown=1)
    assert act(env, "noop").observations[PLAYER].text.count(":") == 4  # error, question, memory, one entry
    sizes = {kind: MemoryDialogue(kinds=(kind,)).tasks("train", 5, 0) for kind in KINDS}
    for kind, tasks in sizes.items():
        strata = Counter(MemoryDialogue(kinds=(kind,)).reset(task).info["stratum"] for task in tasks)
        assert any(kind in stratum for stratum in strata)
    assert {len(MemoryDialogue(roles=roles).agents) for roles in ("one", "two")} == {1, 2}


def test_difficulty_is_what_changes():  # rule 8
    env = MemoryDialogue()
    for task in env.tasks("train", 20, 0):
        events = build(PLAN, task.seed).events
        assert env.difficulty(task) == sum(event.happening not in ("again", "chatter") for event in events)


def test_other_words_leave_what_happens():  # rule 9
    for seed in range(40):
        plain, other = build(PLAN, seed), build(replace(PLAN, renamed=True, wording="varied"), seed)
        assert [e.happening for e in plain.events] == [e.happening for e in other.events]
        assert [q.kind for q in plain.questions] == [q.kind for q in other.questions]
        values = {v: r for one in ATTRIBUTES for v, r in zip(one.values, one.renamed, strict=True)}
        assert [values.get(e.value, "") for e in plain.events] == [e.value for e in other.events]
        misheard = build(replace(PLAN, noise=0.5), seed)
        assert [e.meant for e in misheard.events] == [e.meant for e in plain.events]
        assert [q.answer for q in misheard.questions] == [q.answer for q in plain.questions]
    texts = {build(replace(PLAN, wording="varied"), seed).events[0].text.split()[1] for seed in range(100)}
    assert len(texts) > len({build(PLAN, seed).events[0].text.split()[1] for seed in range(100)})
    assert success(MemoryDialogue(renamed=True, wording="short"), 60) == 1.0


def test_noise():  # rule 10
    events = [e for s in range(200) for e in build(replace(PLAN, noise=0.2), s).events if e.topic is not None]
    assert 0.15 < sum(e.value != e.meant for e in events) / len(events) < 0.25
    assert 0.1 < success(MemoryDialogue(noise=0.2), 100) < 0.7


def test_always_adding_is_worse():  # rule 11
    def always_add(env, seen):
        event = env.snapshot().event
        if event is None:
            return env.expert(PLAYER).text
        return "noop" if event.topic is None else f"add {event.topic.note((event.value,))}"

    env = MemoryDialogue(parts=6)
    assert success(env, 60, always_add) < 0.4
    large = MemoryDialogue(parts=6, capacity=64)
    entries = [
        sum(play(large, task, choose)[-1].info["entries"] for task in large.tasks("eval", 30, 0)) / 30
        for choose in (always_add, None)
    ]
    assert entries[0] > 2 * entries[1]


def test_texts_are_short():
    lengths = [
        len(seen.text.split())
        for task in MemoryDialogue().tasks("train", 40, 0)
        for result in play(MemoryDialogue(), task)
        for seen in result.observations.values()
    ]
    assert max(lengths) <= 100


def test_splits_differ():  # rule 12
    env = MemoryDialogue()
    seeds = {split: {task.seed for task in env.tasks(split, 100, 0)} for split in ("train", "eval")}
    assert not seeds["train"] & seeds["eval"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"kinds": ()}, r"`kinds` is empty(.|\n)*Name some of: single, two"),
        ({"capacity": 1}, "capacity"),
        ({"entry_words": 7}, "entry_words"),
        ({"kinds": ("why",)}, "kinds"),
        ({"roles": "three"}, "roles"),
    ],
)
def test_options_are_checked(options, message):  # rule 12
    with pytest.raises(RecipeError, match=message):
        MemoryDialogue(**options)


def test_talks_must_say_something():  # rule 12
    with told(RecipeError, "`repeats` is 0.5"):
        MemoryDialogue(repeats=0.5, chatter=0.5)
