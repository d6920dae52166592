"""The environment `clinic`: a consultation turn by turn, its observations and rewards.

Knows acts and texts. Tables, patients and beliefs come from `table`, scores of responses from `rubric`.
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
from palaestra.registry import Fraction, PositiveInt, register

AGENT = "doctor"
UNREADABLE, REPEATED, LATE = -0.2, -0.2, -0.3  # penalties of the inquiry
CASES = 200  # earlier patients that `match` compares with
LISTED = 3  # diseases of a diagnosis, at most; similar cases that are told
DOUBTFUL = 0.05  # a disease less probable than this should not be named


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """How far one consultation is. Frozen: a snapshot is the state itself."""

    table: Table
    patient: Patient
    seed: int
    answers: tuple[tuple[int, bool], ...] = ()
    said: str = ""
    turn: int = 0
    rubric: tuple[float, ...] = ()  # of each response so far

    @property
    def known(self) -> dict[int, bool]:
        """Symptom → whether the patient has it."""
        return dict(self.answers)


@register("environment", "clinic", source="arXiv 2510.04284")
class Clinic(KeepsState[State]):
    """Question a patient, look things up, and name the disease.

    The patient complains vaguely (of the chest, the skin …) and has symptoms of a hidden disease, each with a
    probability; who asks for one is told, and nothing else. `ask cough`, or any sentence with a symptom in it after
    `ask`; `lookup arvosis` tells a disease's usual symptoms; `match` tells which diseases earlier patients had who were
    most like this one; `diagnose arvosis` ends the consultation, also with up to three diseases, most probable first;
    `recommend` and a sentence that names a disease does too.

    Args:
        diseases: how many a patient may have one of, 4–30. Higher: more questions. Usual: 30; 6 for small models.
        symptoms: how many there are to ask for, 8–60. Higher: more words, more questions. Usual: 60; 12 for small
            models. Each disease needs half a symptom at least.
        tables: 0 draws a table for every patient, k > 0 gives every patient one of k tables. Usual: 1, which can be
            learned by heart.
        sureness: least probability of a disease's own symptom, 0.5–1. Lower: patients who lack usual symptoms; no
            doctor is always right. Usual: 0.9.
        noise: probability that the patient tells a symptom wrongly.
        names: "plain", or "renamed": invented words for symptoms.
        reward: "decision" (1 for the right disease first, 0.5 for the right one further down, else 0) or "inquiry",
            which adds the mean of the rubric of all responses at the end.
        vetoes: a certain statement (`you definitely have …`) makes the rubric −1, an unsound response −0.75.
        confidence: of the expert, who diagnoses when a disease is more probable than that.
        max_turns: turns until the consultation is cut off.

    `info` tells `process`, the rubric of the response (with −0.2 for one that cannot be read or repeats a question,
    −0.3 for running out of turns), `gain` (of a question, as a share of the best question's), `unsafe`, `executable`,
    and `stratum`, how many questions were asked. `vector` says which symptoms are known, and how; the complaint.
    The expert asks what tells most (information gain) by the true table, without looking at the patient.
    """

    agents: tuple[str, ...] = (AGENT,)
    abilities: tuple[str, ...] = ("tasks", "content", "expert", "snapshot", "vector")
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
        reward: Literal["decision", "inquiry"] = "decision",
        vetoes: bool = True,
        confidence: Annotated[float, pydantic.Field(gt=0.5, lt=1)] = 0.99,
        max_turns: PositiveInt = 25,
    ) -> None:
        Refusals("environment: clinic").when(
            diseases > 2 * symptoms,
            f"{diseases} diseases cannot be told apart by {symptoms} symptoms.",
            "Give at least half as many symptoms as diseases.",
        )
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

    def tasks(self, split: str, n: int, seed: int) -> list[Task]:
        """`n` patients; no split has one of another."""
        return seeded_tasks("clinic", self._params, split, n, seed, content=self.content)

    def content(self, task: Task) -> Any:
        """Which disease has which symptoms, by what that is drawn from, and the patient."""
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
        """Asks for the symptom that tells most until one disease is probable enough, or all is asked."""
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
        return "".join(sign if sign.isalnum() else " " for sign in text.lower()).split()

    def _act(self, state: State, words: list[str]) -> tuple[State, str | None, list[int]]:
        """The state afterwards, the kind of act (None: unreadable), and the diseases that it names."""
        kind, rest = (words[0], words[1:]) if words else ("", [])
        symptom = next((self._symptoms.index(word) for word in rest if word in self._symptoms), None)
        listed = list(dict.fromkeys(self._diseases.index(word) for word in rest if word in self._diseases))
        if kind == "ask" and symptom is not None:
            answers = tuple(pair for pair in state.answers if pair[0] != symptom)
            has = symptom in state.patient.symptoms
            said = f"{'yes' if has else 'no'}, {self._symptoms[symptom]}."
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
        """The diseases of the earlier patients who agree most with what is known, most similar first."""
        scored = []
        for number in range(CASES):
            case = draw_patient(state.table, 0.0, derive(self._params["tables"], "case", number))
            agree = sum((symptom in case.symptoms) == has for symptom, has in state.answers)
            scored.append((-agree, number, case.disease))
        found = dict.fromkeys(self._diseases[disease] for _, _, disease in sorted(scored))
        return " ".join(list(found)[:LISTED])

    def _decision(self, patient: Patient, listed: list[int]) -> float:
        """1 for the right disease first, 0.5 for the right one further down."""
        return 1.0 if listed[:1] == [patient.disease] else 0.5 if patient.disease in listed else 0.0

    def _judged(
        self, before: State, after: State, words: list[str], kind: str | None, listed: list[int], *, late: bool
    ) -> dict[str, float]:
        """The numbers of one response."""
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

    # ---- observations -------------------------------------------------------------------------------------
    def _observe(self, state: State) -> Observation:
        count = len(self._symptoms)
        felt = names.area(state.patient.complaint, count)
        yes = " ".join(self._symptoms[s] for s, has in sorted(state.answers) if has)
        no = " ".join(self._symptoms[s] for s, has in sorted(state.answers) if not has)
        parts = [f"complaint: {felt}.", f"yes: {yes or 'none'}.", f"no: {no or 'none'}.", state.said]
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
    """The areas in which some symptom in use is felt."""
    return tuple(dict.fromkeys(names.area(symptom, symptoms) for symptom in range(symptoms)))


def _table_of(world: Mapping[str, Any], seed: int) -> int:
    """The number of the table of a seed."""
    return seed // 2 % int(world["tables"]) if world["tables"] else seed  # the last bit of a seed tells its split
