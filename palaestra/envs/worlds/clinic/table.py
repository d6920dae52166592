"""Tables of diseases and symptoms, patients drawn from them, and what answers tell of the disease.

Knows probabilities. Knows nothing of texts or rewards.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from palaestra.data import derive

OWN = (3, 6)  # symptoms of a disease, fewest and most
LEAK = 0.01  # probability of a symptom that the disease does not cause


@dataclass(frozen=True, slots=True, eq=False)
class Table:
    """Which symptoms a disease causes.

    Attributes:
        present: float64 (diseases, symptoms), probability that a patient with the disease has the symptom: a noisy or
            of the disease's own cause and a leak, 1 − (1 − leak) · (1 − cause).
        cause: float64, likewise, of the disease alone; 0 where it has nothing to do with the symptom.
    """

    present: np.ndarray
    cause: np.ndarray

    def typical(self, disease: int) -> list[int]:
        """The disease's own symptoms, most frequent first."""
        own = np.flatnonzero(self.cause[disease])
        return [int(symptom) for symptom in sorted(own, key=lambda s: (-self.cause[disease, s], s))]


@functools.lru_cache(maxsize=1024)
def draw_table(diseases: int, symptoms: int, sureness: float, seed: int) -> Table:
    """A table in which no two diseases have the same symptoms.

    Args:
        sureness: least probability of a disease's own symptom; the most is in the middle between it and 1.
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
    """The hidden disease, the symptoms, and the one that the patient complains of."""

    disease: int
    symptoms: frozenset[int]
    complaint: int


def draw_patient(table: Table, noise: float, seed: int) -> Patient:
    """A patient with at least one symptom of the disease; with noise each symptom is told wrongly at that rate."""
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
    """float64 (diseases,): how probable each disease is after answers, all alike before.

    P(d | answers) ∝ Π p(s | d) over present symptoms · Π (1 − p(s | d)) over absent ones
    """
    weight = np.zeros(len(table.present))
    for symptom, there in answers.items():
        chance = table.present[:, symptom]
        weight += np.log(chance if there else 1 - chance)
    weight = np.exp(weight - weight.max())
    return weight / weight.sum()


def entropy(belief: np.ndarray) -> float:
    """In nats."""
    some = belief[belief > 0]
    return float(-(some * np.log(some)).sum())


def gains(table: Table, answers: Mapping[int, bool]) -> np.ndarray:
    """float64 (symptoms,): by how much asking for each symptom lowers the entropy on average; 0 for known ones.

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
    """The symptom whose answer tells most; None when all are known."""
    if len(answers) == table.present.shape[1]:
        return None
    found = gains(table, answers)
    found[list(answers)] = -1.0
    return int(np.argmax(found))
