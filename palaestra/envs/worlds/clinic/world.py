"""The environment `clinic`: a consultation turn by turn, with its observations and rewards.

`table.py` has tables, patients and probabilities of diseases, and `rubric.py` scores responses.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

import numpy as np
import pydantic

from palaestra.data import Action, Observation, StepResult, Task, derive
from palaestra.envs.kit.choices import choice
from palaestra.envs.kit.contents import as_json
from palaestra.envs.kit.leniency import read_leniently
from palaestra.envs.kit.manuals import turn_limit, write_manual
from palaestra.envs.kit.panels import seeded_tasks
from palaestra.envs.kit.refusals import Refusals
from palaestra.envs.kit.results import single
from palaestra.envs.kit.state import KeepsState
from palaestra.envs.worlds.clinic import names
from palaestra.envs.worlds.clinic.rubric import judge, weigh
from palaestra.envs.worlds.clinic.table import (
    Patient,
    Table,
    best_question,
    draw_patient,
    draw_table,
    entropy,
    gains,
    posterior,
)
from palaestra.envs.worlds.clinic.talk import Talk
from palaestra.registry import Fraction, PositiveInt, register

AGENT = "doctor"
ACTS = ("ask", "lookup", "match", "diagnose", "recommend")
UNREADABLE, REPEATED, LATE = -0.2, -0.2, -0.3  # penalties in `process`
CASES = 200  # earlier patients with whom `match` compares the present one
LISTED = 3  # most diseases of a diagnosis, and most that `match` tells
DOUBTFUL = 0.05  # a disease less probable than this should not be named


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """The state of one consultation. It cannot be changed, so a snapshot is the state itself.

    Attributes:
        answers: symptoms that were asked for, and whether the patient has them.
        said: the answer to the last act.
        rubric: `process` of each response so far.
    """

    table: Table
    patient: Patient
    seed: int
    answers: tuple[tuple[int, bool], ...] = ()
    said: str = ""
    turn: int = 0
    rubric: tuple[float, ...] = ()

    @property
    def known(self) -> dict[int, bool]:
        """Symptom → whether the patient says that it has it."""
        return dict(self.answers)


@register("environment", "clinic", ignores_if={"talk=notes": ("wordings",)}, source="arXiv 2510.04284")
class Clinic(KeepsState[State]):
    """Question a patient, look things up, and name the disease.

    A table gives the probability with which each disease causes each symptom. The patient has a hidden disease and
    symptoms drawn from the table. It names only an area of the body at first, such as the chest or the skin, and then
    answers questions. `ask cough`, or `ask` and any sentence that contains a symptom, asks for that symptom. `lookup
    arvosis` tells the usual symptoms of a disease. `match` tells the diseases of the earlier patients who are most
    like this one. `diagnose arvosis` ends the consultation. It may name up to three diseases, the most probable one
    first. `recommend` with a sentence that names one to three diseases does the same.

    Args:
        diseases: number of diseases, 4–30. Higher: more questions. Usual: 30; 6 for small models.
        symptoms: number of symptoms, 8–60, and at least half as many as diseases. Higher: more words, more questions.
            Usual: 60; 12 for small models.
        tables: number of tables; each patient comes from one of them. 0 draws a new table for every patient. Usual: 1,
            which a policy can learn by heart.
        sureness: least probability with which a disease causes one of its symptoms, 0.5–1. Lower: more patients lack
            usual symptoms, so that no doctor is always right. Usual: 0.9.
        noise: probability that the patient reports a symptom wrongly. Higher: answers mislead more often.
        names: "plain", or "renamed" for invented names of symptoms.
        talk: "notes": the patient names an area of the body, and each observation lists all answers. "free": it
            describes what hurts and answers in everyday English, mixed with remarks about other people, and only the
            latest words are shown. The doctor must understand them and remember. It is meant for pretrained models.
        wordings: "held_out": the split "train" has half of the patient's words, and the others have the other half.
            "shared": all splits have all of them. Only with `talk: free`.
        reward: "decision" (at the end 1 if the first disease is right, 0.5 if a later one is, else 0) or "inquiry",
            which adds to that the mean of `process` over all responses.
        vetoes: a response that claims certainty (`you definitely have …`) gets −1 from the rubric, and one that names
            an improbable disease −0.75.
        confidence: the expert names a disease as soon as it is more probable than this. Higher: more questions.
        max_turns: turns after which the consultation is cut off.

    Per step, `info` has `process`, the rubric of the response in [−1, 1], or −0.2 if it cannot be read; a repeated
    question adds −0.2, and running out of turns −0.3. It also has `gain`, the information gain of a question as a share
    of the best question's; `unsafe`, 1 if the response claims certainty; `executable`, 1 if it can be read; and
    `stratum`, the number of symptoms asked for so far. `vector` has the known answers, the area of the complaint and
    the share of turns left. The expert asks the question with the largest information gain in the true table. It knows
    nothing else about the patient.
    """

    agents: tuple[str, ...] = (AGENT,)
    abilities: tuple[str, ...] = ("tasks", "instruction", "content", "expert", "snapshot", "vector")
    provides = frozenset({"state_key", "outcome", "process", "executable", "gain", "unsafe", "stratum"})

    def __init__(
        self,
        *,
        diseases: Annotated[int, pydantic.Field(ge=4, le=30)] = 30,
        symptoms: Annotated[int, pydantic.Field(ge=8, le=60)] = 60,
        tables: Annotated[int, pydantic.Field(ge=0)] = 1,
        sureness: Annotated[float, pydantic.Field(ge=0.5, le=1)] = 0.9,
        noise: Fraction = 0.0,
        names: Literal["plain", "renamed"] = "plain",
        talk: Literal["notes", "free"] = "notes",
        wordings: Literal["shared", "held_out"] = "shared",
        reward: Literal["decision", "inquiry"] = "decision",
        vetoes: bool = True,
        confidence: Annotated[float, pydantic.Field(gt=0.5, lt=1)] = 0.99,
        max_turns: PositiveInt = 25,
    ) -> None:
        Refusals("environment: clinic").when(
            diseases > 2 * symptoms,
            f"{diseases} diseases cannot be told apart by {symptoms} symptoms.",
            f"Set `symptoms` to at least {-(-diseases // 2)}, or lower `diseases`.",
        )
        Refusals("environment: clinic").when(
            talk == "free" and names == "renamed",
            "patients describe plain symptoms, and `names: renamed` gives them others.",
            "Leave `names` out, or set `talk: notes`.",
        )
        self._free, self._wordings = talk == "free", wordings
        self._params: dict[str, Any] = {
            "diseases": diseases,
            "symptoms": symptoms,
            "tables": tables,
            "sureness": sureness,
            "noise": noise,
        }
        self._symptoms = _symptom_names(symptoms, renamed=names == "renamed")
        self._diseases = _disease_names(diseases)
        self._reward, self._vetoes, self._confidence, self._max_turns = reward, vetoes, confidence, max_turns
        self.actions = (
            *(f"ask {name}" for name in self._symptoms),
            *(f"diagnose {name}" for name in self._diseases),
            "match",
            *(f"lookup {name}" for name in self._diseases),
        )
        self.action_count = len(self.actions)
        self.vector_size = 2 * symptoms + len(_areas(symptoms)) + 1

    def instruction(self, agent: str) -> str:
        """The rules of the world and its commands, for an agent that has never seen it."""
        first = (
            "The patient first tells what bothers it and what other people have, which does not matter, and then "
            "answers "
            "your questions in its own words. Only its latest words are shown."
            if self._free
            else "The patient first names only the area of the body that hurts, and then answers your questions."
        )
        return write_manual(
            f"You are a doctor. A patient has one of these diseases: {', '.join(self._diseases)}. Find out which one. "
            f"{first} These are the symptoms that you can ask for: {', '.join(self._symptoms)}.",
            {
                "ask SYMPTOM": "ask the patient whether it has a symptom",
                "lookup DISEASE": "read the usual symptoms of a disease",
                "match": "read the diseases of earlier patients who are most like this one",
                "diagnose DISEASE": "name the disease, or up to three, the most probable one first",
            },
            example=f"ask {self._symptoms[0]}",
            ending="The diagnosis ends the consultation. It succeeds if the first disease is the right one."
            f"{turn_limit(self._max_turns)}",
            hint="Ask first, do not ask the same thing twice, and never claim to be certain.",
        )

    def tasks(self, split: str, n: int, seed: int) -> list[Task]:
        """`n` patients. Those of the split "train" occur in no other split."""
        return seeded_tasks("clinic", self._params, split, n, seed, content=self.content)

    def content(self, task: Task) -> Any:
        """The numbers that decide the table, and the patient."""
        world = {**self._params, **task.params}
        sizes = [world[name] for name in ("diseases", "symptoms", "sureness")]
        return as_json((*sizes, _table_of(world, task.seed), self._drawn(task)[1]))

    def _drawn(self, task: Task) -> tuple[Table, Patient]:
        world = {**self._params, **task.params}
        number = _table_of(world, task.seed)
        table = draw_table(world["diseases"], world["symptoms"], world["sureness"], number)
        return table, draw_patient(table, world["noise"], task.seed)

    def reset(self, task: Task) -> StepResult:
        table, patient = self._drawn(task)
        self.state = State(table=table, patient=patient, seed=task.seed)
        return single(AGENT, self._observe(self.state), info={"success": False, "stratum": "0"})

    def step(self, actions: Mapping[str, Action]) -> StepResult:
        before = self.state
        words = self._words(actions[AGENT].value)
        after, kind, listed = self._act(before, words)
        over = kind in ("diagnose", "recommend")
        cut = not over and before.turn + 1 >= self._max_turns
        told = self._judged(before, after, words, kind, listed, late=cut)
        after = replace(after, turn=before.turn + 1, rubric=(*before.rubric, told["process"]))
        self.state = after
        decision = self._decision(after.patient, listed) if over else 0.0
        reward = decision
        if self._reward == "inquiry" and (over or cut):
            reward += float(np.mean(after.rubric))
        return single(
            AGENT,
            self._observe(after),
            reward=reward,
            over=over,
            cut=cut,
            act=told,
            readable=kind is not None,
            info={"success": decision == 1.0, "stratum": str(len(after.answers))},
        )

    # ---- abilities ----------------------------------------------------------------------------------------
    def expert(self, agent: str) -> Action:
        """Ask the best question.

        The expert diagnoses if a disease is probable enough, if all symptoms are known, or in the last turn.
        """
        state = self.state
        belief = posterior(state.table, state.known)
        best = int(np.argmax(belief))
        question = best_question(state.table, state.known)
        last = state.turn + 1 >= self._max_turns
        if question is None or last or belief[best] > self._confidence:
            text = f"diagnose {self._diseases[best]}"
        else:
            text = f"ask {self._symptoms[question]}"
        return choice(text, self.actions)

    # ---- playing ------------------------------------------------------------------------------------------
    def _words(self, value: Any) -> list[str]:
        if isinstance(value, int | np.integer) and 0 <= value < len(self.actions):
            value = self.actions[int(value)]
        text = value if isinstance(value, str) else ""

        def read(text: str) -> list[str] | None:
            words = "".join(sign if sign.isalnum() else " " for sign in text.lower()).split()
            return words if words[:1] and words[0] in ACTS else None

        return read_leniently(text, read) or text.lower().split()

    def _act(self, state: State, words: list[str]) -> tuple[State, str | None, list[int]]:
        """The state after an act, its kind (None: it cannot be read), and the diseases that a diagnosis names."""
        kind, rest = (words[0], words[1:]) if words else ("", [])
        symptom = next((self._symptoms.index(word) for word in rest if word in self._symptoms), None)
        listed = list(dict.fromkeys(self._diseases.index(word) for word in rest if word in self._diseases))
        if kind == "ask" and symptom is not None:
            answers = tuple(pair for pair in state.answers if pair[0] != symptom)
            has = symptom in state.patient.symptoms
            said = f"{'yes' if has else 'no'}, {self._symptoms[symptom]}."
            if self._free:
                said = f"You ask about {self._symptoms[symptom]}. {self._talk(state).answer(symptom, yes=has)}"
            return replace(state, answers=(*answers, (symptom, has)), said=said), kind, []
        if kind == "lookup" and len(listed) == 1:
            usual = " ".join(self._symptoms[s] for s in state.table.typical(listed[0]))
            return replace(state, said=f"{self._diseases[listed[0]]}: {usual}."), kind, []
        if kind == "match" and not rest:
            return replace(state, said=f"like {self._similar(state)}."), kind, []
        if kind in ("diagnose", "recommend") and 1 <= len(listed) <= LISTED:
            return replace(state, said=""), kind, listed
        return replace(state, said="error: cannot read that."), None, []

    def _similar(self, state: State) -> str:
        """The diseases of the earlier patients who agree with most answers, most similar patients first."""
        scored = []
        for number in range(CASES):
            case = draw_patient(state.table, 0.0, derive(self._params["tables"], "case", number))
            agree = sum((symptom in case.symptoms) == has for symptom, has in state.answers)
            scored.append((-agree, number, case.disease))
        found = dict.fromkeys(self._diseases[disease] for _, _, disease in sorted(scored))
        return " ".join(list(found)[:LISTED])

    def _decision(self, patient: Patient, listed: list[int]) -> float:
        """1 if the first disease is right, 0.5 if a later one is, else 0."""
        return 1.0 if listed[:1] == [patient.disease] else 0.5 if patient.disease in listed else 0.0

    def _judged(
        self, before: State, after: State, words: list[str], kind: str | None, listed: list[int], *, late: bool
    ) -> dict[str, float]:
        """The numbers that `info` has of one response."""
        belief = posterior(before.table, before.known)
        asked = next((symptom for symptom, _ in after.answers[len(before.answers) :]), None)
        repeated = kind == "ask" and asked is None
        share = 1.0
        if kind == "ask":
            found = gains(before.table, before.known)
            share = float(found[asked] / found.max()) if asked is not None and found.max() > 1e-9 else 0.0
        first = np.log(len(belief))
        scores = judge(
            words,
            gain=share,
            resolved=max(0.0, min(1.0, 1 - entropy(posterior(after.table, after.known)) / first)),
            doubtful=any(belief[disease] < DOUBTFUL for disease in listed),
            known=kind is not None,
        )
        process = weigh(scores, vetoes=self._vetoes)
        process = (process if kind is not None else UNREADABLE) + REPEATED * repeated + LATE * late
        return {
            "process": process,
            "gain": share if kind == "ask" else 0.0,
            "unsafe": float(scores["safety"] < 0),
            "executable": float(kind is not None),
        }

    def _talk(self, state: State) -> Talk:
        return Talk(state.seed, None if self._wordings == "shared" else state.seed % 2)

    def _complaint(self, state: State) -> str:
        """The complaint in free words, with a remark about a symptom that the patient does not have."""
        absent = [s for s in range(len(self._symptoms)) if s not in state.patient.symptoms]
        other = absent[derive(state.seed, "remark") % len(absent)]
        return self._talk(state).complaint(self._symptoms[state.patient.complaint], self._symptoms[other])

    # ---- observations -------------------------------------------------------------------------------------
    def _observe(self, state: State) -> Observation:
        count = len(self._symptoms)
        felt = names.area(state.patient.complaint, count)
        yes = " ".join(self._symptoms[s] for s, has in sorted(state.answers) if has)
        no = " ".join(self._symptoms[s] for s, has in sorted(state.answers) if not has)
        parts = [f"complaint: {felt}.", f"yes: {yes or 'none'}.", f"no: {no or 'none'}.", state.said]
        if self._free:
            parts = [state.said or self._complaint(state)]
        known = np.zeros((count, 2), np.float32)
        for symptom, has in state.answers:
            known[symptom, int(has)] = 1
        area = np.array([name == felt for name in _areas(count)], np.float32)
        left = np.array([1 - state.turn / self._max_turns], np.float32)
        answered = sorted((symptom, has) for symptom, has in state.answers)
        return Observation(
            text=" ".join(part for part in parts if part),
            vector=np.concatenate([known.ravel(), area, left]),
            legal=self.actions,
            state_key=f"{state.seed}/{answered}/{state.said if state.said[:4] != 'yes,' else ''}",
        )


def _symptom_names(count: int, *, renamed: bool) -> tuple[str, ...]:
    chosen = names.INVENTED if renamed else names.SYMPTOMS
    return tuple(chosen[names.place(symptom, count)] for symptom in range(count))


def _disease_names(count: int) -> tuple[str, ...]:
    return names.DISEASES[:count]


def _areas(symptoms: int) -> tuple[str, ...]:
    """The areas where a symptom in use is felt."""
    return tuple(dict.fromkeys(names.area(symptom, symptoms) for symptom in range(symptoms)))


def _table_of(world: Mapping[str, Any], seed: int) -> int:
    """The number of the table that the patient of a seed comes from."""
    return seed // 2 % int(world["tables"]) if world["tables"] else seed  # the last bit of a seed tells its split
