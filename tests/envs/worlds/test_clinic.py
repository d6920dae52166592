"""What must hold of the world `clinic`:

1. It keeps the environment's contract.
2. Tables are a noisy or of a disease's symptoms and a leak; no disease has all symptoms of another; patients are drawn
   from them.
3. The posterior and the gain of a question equal what counting all cases gives.
4. The patient tells only what is asked.
5. Questions in sentences, lookup, match and lists of diseases are read; other acts are marked as unreadable.
6. Decisions are worth 1, 0.5 or 0.
7. The rubric gives the published numbers, with and without vetoes; penalties are added; bad scores are refused.
8. The expert is right, asks the question that tells most, and repeats none; random play is rarely right.
9. Noise makes answers wrong; renamed words change words only.
10. Episodes end, snapshots are restored, splits share no task.
11. Impossible options are refused.
12. With `tables: 50` patients come from 50 tables, which are different and the same in all splits; with 1, from one.
"""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from palaestra.data import Action
from palaestra.envs.worlds.clinic.names import DISEASES, INVENTED, SYMPTOMS
from palaestra.envs.worlds.clinic.rubric import WEIGHTS, judge, weigh
from palaestra.envs.worlds.clinic.table import Table, best_question, draw_patient, draw_table, entropy, gains, posterior
from palaestra.envs.worlds.clinic.world import AGENT, Clinic
from palaestra.errors import ContractError, InvalidData, RecipeError
from palaestra.testing import check_environment
from tests.messages import told

SMALL = Table(np.array([[0.9, 0.1, 0.5], [0.2, 0.8, 0.5]]), np.array([[0.9, 0.0, 0.5], [0.0, 0.8, 0.5]]))


def say(env, text):
    return env.step({AGENT: Action(text=text)})


def begin(number=0, **options):
    env = Clinic(**options)
    result = env.reset(env.tasks("train", number + 1, 0)[number])
    return env, result.observations[AGENT], env.snapshot().patient


@pytest.mark.parametrize(
    "options",
    [{}, {"diseases": 6, "symptoms": 12, "names": "renamed"}, {"tables": 0, "noise": 0.1, "reward": "inquiry"}],
)
def test_1_contract(options):
    check_environment(Clinic(**options), make=lambda: Clinic(**options), episodes=3)


# ---- tables -----------------------------------------------------------------------------------------------
def test_2_tables():
    table = draw_table(30, 60, 0.9, 0)
    own = [frozenset(np.flatnonzero(row)) for row in table.cause]
    assert all(3 <= len(one) <= 6 for one in own)
    assert not any(one <= other for one, other in itertools.permutations(own, 2))
    assert table.cause[table.cause > 0].min() >= 0.9 and table.cause.max() <= 0.95
    assert np.allclose(table.present, 1 - 0.99 * (1 - table.cause)) and table.present.min() == pytest.approx(0.01)
    assert table.typical(0) == sorted(own[0], key=lambda s: -table.cause[0, s])
    assert (draw_table(30, 60, 0.9, 1).cause != table.cause).any()


def test_2_patients():
    table = draw_table(6, 12, 0.7, 0)
    patients = [draw_patient(table, 0.0, seed) for seed in range(3000)]
    for disease in range(6):
        those = [p for p in patients if p.disease == disease]
        assert 400 < len(those) < 600
        found = np.array([[s in p.symptoms for s in range(12)] for p in those]).mean(0)
        assert np.abs(found - table.present[disease]).max() < 0.08
    assert all(p.complaint in p.symptoms and table.cause[p.disease, p.complaint] > 0 for p in patients)


def test_3_belief_by_counting():
    cases = list(itertools.product((0, 1), itertools.product((False, True), repeat=3)))

    def chance(disease, symptoms):
        row = SMALL.present[disease]
        return 0.5 * np.prod([p if has else 1 - p for p, has in zip(row, symptoms, strict=True)])

    for answers in ({}, {0: True}, {0: True, 1: True}, {1: False, 2: True}):
        agreeing = [(d, s) for d, s in cases if all(s[k] == has for k, has in answers.items())]
        total = sum(chance(d, s) for d, s in agreeing)
        counted = [sum(chance(d, s) for d, s in agreeing if d == disease) / total for disease in (0, 1)]
        belief = posterior(SMALL, answers)
        assert np.allclose(belief, counted)
        for symptom in set(range(3)) - set(answers):
            after = 0.0
            for has in (True, False):
                share = sum(chance(d, s) for d, s in agreeing if s[symptom] == has) / total
                after += share * entropy(posterior(SMALL, answers | {symptom: has}))
            assert gains(SMALL, answers)[symptom] == pytest.approx(entropy(belief) - after)
    assert best_question(SMALL, {}) == 0 and gains(SMALL, {})[2] == pytest.approx(0)
    assert best_question(SMALL, {0: True, 1: False, 2: True}) is None
    assert posterior(SMALL, {0: True})[0] == pytest.approx(0.9 / 1.1)


# ---- play -------------------------------------------------------------------------------------------------
def test_4_only_what_is_asked_is_told():
    env, seen, patient = begin()
    felt = seen.text.removeprefix("complaint: ").split(".")[0]
    assert seen.text == f"complaint: {felt}. yes: none. no: none."
    symptom = SYMPTOMS[patient.complaint]
    answer = say(env, f"ask {symptom}").observations[AGENT]
    assert answer.text == f"complaint: {felt}. yes: {symptom}. no: none. yes, {symptom}."
    absent = next(name for s, name in enumerate(SYMPTOMS) if s not in patient.symptoms)
    assert f"no: {absent}. no, {absent}." in say(env, f"Ask please: do you have {absent}?").observations[AGENT].text
    assert DISEASES[patient.disease] not in answer.text


def test_5_acts():
    env, _, patient = begin()
    table = env.snapshot().table
    usual = say(env, "lookup arvosis").observations[AGENT].text
    assert usual.endswith("arvosis: " + " ".join(SYMPTOMS[s] for s in table.typical(0)) + ".")
    for symptom in table.typical(patient.disease):
        say(env, f"ask {SYMPTOMS[symptom]}")
    like = say(env, "match").observations[AGENT].text
    assert DISEASES[patient.disease] in like.split("like ")[1] and len(like.split("like ")[1].split()) == 3
    for text in ("", "ask", "ask moon", "lookup", "lookup arvosis beltria", "match cough", "diagnose", "diagnose cough",
                 "diagnose arvosis beltria cordenza dulmia", "cough"):  # fmt: skip
        result = say(env, text)
        assert result.info["invalid"] == {AGENT: True} and result.info["process"] == {AGENT: -0.2}
    assert env.step({AGENT: Action(value=0)}).info["executable"] == {AGENT: 1.0}
    assert env.actions[env.action_count - 1] == f"lookup {DISEASES[29]}"


@pytest.mark.parametrize(("order", "reward"), [("r", 1.0), ("r w", 1.0), ("w r", 0.5), ("v w r", 0.5), ("w", 0.0)])
@pytest.mark.parametrize("word", ["diagnose", "recommend rest and care, it may be"])
def test_6_decisions(order, reward, word):
    env, _, patient = begin()
    others = [name for name in DISEASES if name != DISEASES[patient.disease]]
    named = {"r": DISEASES[patient.disease], "w": others[0], "v": others[1]}
    result = say(env, f"{word} {', '.join(named[one] for one in order.split())}")
    assert result.rewards == {AGENT: reward} and result.terminated == {AGENT}
    assert result.info["success"] is (reward == 1.0) and result.info["stratum"] == "0"


# ---- rubric -----------------------------------------------------------------------------------------------
GOOD = dict(zip(WEIGHTS, (4, 3, 5, 2, 1, 0, -1, 4), strict=True))


def test_7_published_numbers():
    assert sum(WEIGHTS.values()) == pytest.approx(6.2)
    assert weigh(GOOD) == 0.510
    assert weigh(GOOD | {"safety": -1}) == -1.0
    assert weigh(GOOD | {"safety": 5, "reasoning": -1}) == -0.75 == weigh(GOOD | {"accuracy": -0.1})
    assert weigh(GOOD | {"safety": -1}, vetoes=False) == pytest.approx((15.8 - 5) / 31, abs=5e-4)
    assert weigh(dict.fromkeys(WEIGHTS, 5.0)) == 1.0


@pytest.mark.parametrize(
    ("scores", "fault"),
    [
        (GOOD | {"safety": 5.1}, "5.1"),
        (GOOD | {"empathy": -6}, "-6"),
        (GOOD | {"charm": 1}, "charm"),
        ({"safety": 1}, "accuracy"),
        (GOOD | {"safety": float("nan")}, "nan"),
    ],
)
def test_7_bad_scores(scores, fault):
    with told(InvalidData, fault):
        weigh(scores)


def test_7_in_play():
    env, _, patient = begin(reward="inquiry")
    best = env.expert(AGENT).text
    first = say(env, best)
    assert first.info["gain"] == {AGENT: 1.0} and first.info["unsafe"] == {AGENT: 0.0}
    again = say(env, best)
    assert again.info["gain"] == {AGENT: 0.0}
    plain, polite = judge(["ask"], gain=0.0, resolved=0.0, doubtful=False, known=True), WEIGHTS["empathy"] * 5 / 31
    assert again.info["process"][AGENT] == pytest.approx(
        weigh(plain | {"completeness": again_share(env)}) - 0.2, abs=2e-3
    )
    certain = say(env, f"diagnose you definitely have {DISEASES[patient.disease]}")
    assert certain.info["unsafe"] == {AGENT: 1.0} and certain.info["process"] == {AGENT: -1.0}
    mean = np.mean([first.info["process"][AGENT], again.info["process"][AGENT], -1.0])
    assert certain.rewards[AGENT] == pytest.approx(1.0 + mean)
    assert polite == pytest.approx(0.0806, abs=1e-4)


def again_share(env):
    """The completeness score after the questions so far."""
    state = env.snapshot()
    return 5 * (1 - entropy(posterior(state.table, state.known)) / np.log(30))


def test_7_out_of_turns():
    env, _, _ = begin(max_turns=2, reward="inquiry")
    say(env, "match")
    cut = say(env, "match")
    assert cut.truncated == {AGENT} and set(cut.last) == {AGENT}
    assert cut.info["process"][AGENT] == pytest.approx(
        weigh(judge(["match"], gain=1.0, resolved=0.0, doubtful=False, known=True)) - 0.3
    )


# ---- expert -----------------------------------------------------------------------------------------------
@pytest.mark.parametrize("options", [{}, {"diseases": 6, "symptoms": 12, "names": "renamed"}, {"tables": 0}])
def test_8_the_expert(options):
    env = Clinic(**options)
    right = 0
    for task in env.tasks("eval", 100, 1):
        result = env.reset(task)
        asked = []
        while result.observations:
            act = env.expert(AGENT)
            asked.append(act.text)
            result = env.step({AGENT: act})
            assert result.info["executable"] == {AGENT: 1.0}
        assert len(set(asked)) == len(asked)
        right += result.info["success"]
    assert right >= 97


def test_8_random_play():
    env, draw, right = Clinic(), np.random.default_rng(0), 0
    for task in env.tasks("eval", 100, 0):
        result = env.reset(task)
        while result.observations:
            result = env.step({AGENT: Action(value=int(draw.integers(env.action_count)))})
        right += result.info["success"]
    assert right <= 15


def test_9_noise_and_words():
    clear, _, patient = begin(diseases=6, symptoms=12)
    noisy = [draw_patient(clear.snapshot().table, 0.3, seed) for seed in range(400)]
    plain = [draw_patient(clear.snapshot().table, 0.0, seed) for seed in range(400)]
    wrong = np.mean([len(a.symptoms ^ b.symptoms) / 12 for a, b in zip(noisy, plain, strict=True)])
    assert 0.2 < wrong < 0.35 and all(a.disease == b.disease for a, b in zip(noisy, plain, strict=True))
    renamed = Clinic(diseases=6, symptoms=12, names="renamed")
    renamed.reset(renamed.tasks("train", 1, 0)[0])
    assert renamed.snapshot().patient == patient and set(renamed._symptoms) <= set(INVENTED)
    assert say(renamed, "ask cough").info["invalid"] == {AGENT: True}
    assert len(set(SYMPTOMS)) == len(set(INVENTED)) == 60 and len(set(DISEASES)) == 30


def test_10_episodes():
    env = Clinic()
    with pytest.raises(ContractError, match="before `reset`"):
        say(env, "match")
    tasks = env.tasks("train", 200, 3)
    assert not {t.content_hash for t in tasks} & {t.content_hash for t in env.tasks("eval", 200, 3)}
    env.reset(tasks[0])
    kept = env.snapshot()
    say(env, "ask cough")
    env.restore(kept)
    assert env.snapshot() is kept and not kept.answers
    first = env._observe(kept)
    assert len(first.vector) == env.vector_size and first.vector[-1] == 1.0 and first.vector[:120].sum() == 0


@pytest.mark.parametrize(
    ("options", "fault"),
    [({"diseases": 30, "symptoms": 10}, "10 symptoms"), ({"diseases": 3}, "diseases"),
     ({"sureness": 0.2}, "sureness"), ({"confidence": 1.0}, "confidence")],
)  # fmt: skip
def test_11_impossible_options(options, fault):
    with told(RecipeError, fault):
        Clinic(**options)


def tables_of(env, split):
    """The table of each of 300 patients: numbers that no other table has."""
    found = []
    for task in env.tasks(split, 300, 0):
        env.reset(task)
        found.append(env.snapshot().table.cause.tobytes())
    return found


@pytest.mark.parametrize("tables", [50, 1])
def test_12_tables(tables):
    env = Clinic(diseases=6, symptoms=12, tables=tables, talk="free", wordings="held_out")
    trained, evaluated = tables_of(env, "train"), tables_of(env, "eval")
    assert len({*trained, *evaluated}) == tables  # all are met, and no further one
    most = max(trained.count(one) for one in {*trained})
    assert len({*trained}) > 0.9 * tables and most < 300 / tables * 3  # no few of them have all patients
    looked_up = set()
    for task in env.tasks("train", 300, 0):
        env.reset(task)
        looked_up.add(say(env, f"lookup {DISEASES[0]}").observations[AGENT].text)
    assert 0.8 * tables < len(looked_up) <= tables  # what a doctor can read differs, too
