"""Patients of `clinic` who talk freely.

1. The environment keeps its contract, and the expert diagnoses as well as with notes.
2. No complaint and no answer has the name of a symptom, yes or no, so that matching words finds nothing.
3. A reader of the complaints knows a symptom that the patient has, and the remark is about one that it has not.
4. With held-out wordings, training shares no sentence with the other splits.
"""

from __future__ import annotations

import re

import pytest

from palaestra.data import Action
from palaestra.envs.worlds.clinic.names import SYMPTOMS
from palaestra.envs.worlds.clinic.talk import NO, REMARKS, TOLD, YES
from palaestra.envs.worlds.clinic.world import Clinic
from palaestra.errors import RecipeError
from palaestra.testing import check_environment
from tests.messages import told

FREE = {"talk": "free", "tables": 40, "diseases": 8, "symptoms": 16}


def success(**options: object) -> float:
    env, won = Clinic(**options), 0
    for task in env.tasks("eval", 40, 0):
        result = env.reset(task)
        while result.observations:
            result = env.step({"doctor": env.expert("doctor")})
        won += result.info["success"]
    return won / 40


def test_contract() -> None:  # rule 1
    check_environment(Clinic(**FREE), make=lambda: Clinic(**FREE))


def test_the_expert_is_as_good_as_with_notes() -> None:  # rule 1
    assert success(**FREE) == success(**{**FREE, "talk": "notes"}) > 0.9


def test_sentences_name_no_symptom() -> None:  # rule 2
    assert list(TOLD) == list(SYMPTOMS)
    said = [text for pair in TOLD.values() for text in pair]
    assert len(set(said)) == len(said) == 2 * len(SYMPTOMS)
    answers = [text for half in (*YES, *NO) for text in half]
    assert len(set(answers)) == 16
    for text in (*said, *answers, *(one for half in REMARKS for one in half)):
        assert not set(re.findall(r"[a-z]+", text.lower())) & set(SYMPTOMS), text
    assert not any(set(re.findall(r"[a-z]+", text.lower())) & {"yes", "no"} for text in answers)


@pytest.mark.parametrize("wordings", ["shared", "held_out"])
def test_the_complaint_can_be_understood(wordings: str) -> None:  # rules 3 and 4
    env = Clinic(**FREE, wordings=wordings)
    for split, half in (("train", 0), ("eval", 1)):
        for task in env.tasks(split, 40, 0):
            text = env.reset(task).observations["doctor"].text
            patient, names = env.state.patient, env._symptoms
            own = re.search(r"Doctor, (.*?)\.(?: My | In |$)", text)[1]
            (symptom,) = [word for word, pair in TOLD.items() if own in pair]
            assert names.index(symptom) == patient.complaint
            others = [word for word, pair in TOLD.items() if any(one in text for one in pair) and word != symptom]
            assert len(others) == 1 and names.index(others[0]) not in patient.symptoms
            if wordings == "held_out":
                assert not any(pair[1 - half] in text for pair in TOLD.values())


def test_only_the_latest_words_are_shown() -> None:
    env = Clinic(**FREE)
    (task,) = env.tasks("train", 1, 0)
    first = env.reset(task).observations["doctor"].text
    asked = env.step({"doctor": Action(text="ask cough")}).observations["doctor"].text
    again = env.step({"doctor": Action(text="ask cough")}).observations["doctor"].text
    assert "Doctor," in first and "Doctor," not in asked and asked == again
    assert asked.startswith("You ask about cough. ")


def test_renamed_symptoms_cannot_be_described() -> None:
    with told(RecipeError, "describe plain symptoms"):
        Clinic(**FREE, names="renamed")
