"""Tables of diseases and symptoms, patients drawn from them, and how probable a disease is after some answers."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from palaestra.data import derive

OWN = (3, 6)  # fewest and most symptoms that a disease causes
LEAK = 0.01  # probability of a symptom that the disease does not cause


@dataclass(frozen=True, slots=True, eq=False)
class Table:
    """Which symptoms a disease causes, and how often.

    Attributes:
        present: float64 (diseases, symptoms), the probability that a patient with the disease has the symptom. It is a
            noisy or of two causes, the disease and a leak: 1 − (1 − leak) · (1 − cause).
        cause: float64 (diseases, symptoms), the probability that the disease itself causes the symptom; 0 for symptoms
            that it never causes.
    """

    present: np.ndarray
    cause: np.ndarray

    def typical(self, disease: int) -> list[int]:
        """The symptoms that the disease causes, most frequent first."""
        own = np.flatnonzero(self.cause[disease])
        return [int(symptom) for symptom in sorted(own, key=lambda s: (-self.cause[disease, s], s))]


@functools.lru_cache(maxsize=1024)
def draw_table(diseases: int, symptoms: int, sureness: float, seed: int) -> Table:
    """Draw a table. The symptoms of a disease never include all symptoms of another disease.

    Args:
        diseases, symptoms: how many of each there are.
        sureness: least probability with which a disease causes one of its symptoms. The largest is (1 + sureness) / 2.
        seed: decides everything.
    """
    generator = np.random.default_rng(derive(seed, "table"))
    cause = np.zeros((diseases, symptoms))
    known: set[tuple[int, ...]] = set()
    for disease in range(diseases):
        while True:
            count = int(generator.integers(OWN[0], min(OWN[1], symptoms) + 1))
            own = tuple(sorted(int(s) for s in generator.permutation(symptoms)[:count]))
            if not any(set(own) <= set(other) or set(other) <= set(own) for other in known):
                break
        known.add(own)
        cause[disease, list(own)] = generator.uniform(sureness, (1 + sureness) / 2, count)
    return Table(1 - (1 - LEAK) * (1 - cause), cause)


@dataclass(frozen=True, slots=True)
class Patient:
    """A patient: the hidden disease, the symptoms that the patient reports when asked, and the one it complains of."""

    disease: int
    symptoms: frozenset[int]
    complaint: int


def draw_patient(table: Table, noise: float, seed: int) -> Patient:
    """Draw a patient with at least one symptom that the disease causes.

    Args:
        noise: probability that the patient reports a symptom wrongly. What it complains of is always true.
    """
    generator = np.random.default_rng(derive(seed, "patient"))
    disease = int(generator.integers(len(table.present)))
    while True:
        has = generator.random(table.present.shape[1]) < table.present[disease]
        own = np.flatnonzero(has & (table.cause[disease] > 0))
        if len(own):
            break
    complaint = int(own[int(generator.integers(len(own)))])
    told = has ^ (generator.random(len(has)) < noise)
    told[complaint] = True
    return Patient(disease, frozenset(int(s) for s in np.flatnonzero(told)), complaint)


# ---- belief -----------------------------------------------------------------------------------------------
def posterior(table: Table, answers: Mapping[int, bool]) -> np.ndarray:
    """The probability of each disease after some answers: float64 (diseases,). Without answers all are equal.

    P(d | answers) ∝ Π p(s | d) over present symptoms · Π (1 − p(s | d)) over absent ones
    """
    weight = np.zeros(len(table.present))
    for symptom, there in answers.items():
        chance = table.present[:, symptom]
        weight += np.log(chance if there else 1 - chance)
    weight = np.exp(weight - weight.max())
    return weight / weight.sum()


def entropy(belief: np.ndarray) -> float:
    """The entropy of a belief, in nats."""
    some = belief[belief > 0]
    return float(-(some * np.log(some)).sum())


def gains(table: Table, answers: Mapping[int, bool]) -> np.ndarray:
    """The expected information gain of asking for each symptom: float64 (symptoms,), in nats; 0 for known symptoms.

    gain(s) = H(belief) − P(yes) · H(belief | yes) − P(no) · H(belief | no)
    """
    belief = posterior(table, answers)
    chance = belief @ table.present
    yes = belief[:, None] * table.present / chance
    no = belief[:, None] * (1 - table.present) / (1 - chance)

    def uncertain(columns: np.ndarray) -> np.ndarray:
        return -np.where(columns > 0, columns * np.log(np.where(columns > 0, columns, 1.0)), 0.0).sum(0)

    found = entropy(belief) - chance * uncertain(yes) - (1 - chance) * uncertain(no)
    found[list(answers)] = 0.0
    return np.maximum(found, 0.0)


def best_question(table: Table, answers: Mapping[int, bool]) -> int | None:
    """The symptom with the largest gain among those not known yet; None if all are known."""
    if len(answers) == table.present.shape[1]:
        return None
    found = gains(table, answers)
    found[list(answers)] = -1.0
    return int(np.argmax(found))
