# guess.py: an environment plays one episode at a time and says who acts next.
import random

from palaestra.data import Action, Observation, StepResult
from palaestra.envs.kit.panels import seeded_tasks


def problem(draw):
    """The lowest number, the highest, and the one to find."""
    low = draw.randint(0, 8)
    high = low + draw.randint(7, 15)
    return low, high, draw.randint(low, high)


class Guess:
    """Find a number between two limits. After each guess the player is told the limits that are left."""

    agents = ("player",)

    def __init__(self, *, guesses: int = 5):  # keyword-only parameters are options that a recipe can set
        self.guesses = guesses

    def content(self, task):  # what the problem is: training and evaluation get different problems
        return problem(random.Random(task.seed))

    def tasks(self, split, n, seed):
        return seeded_tasks("guess", {}, split, n, seed, content=self.content)

    def reset(self, task):  # everything random comes from the task's seed
        self.draw = random.Random(task.seed)
        self.low, self.high, self.secret = problem(self.draw)
        self.left = self.guesses
        return StepResult(observations={"player": self.seen()})

    def step(self, actions):
        text = str(actions["player"].value).strip()
        guess = int(text) if text.isdecimal() else None
        self.left -= 1
        if guess is not None and guess < self.secret:
            self.low = max(self.low, guess + 1)
        elif guess is not None and guess > self.secret:
            self.high = min(self.high, guess - 1)
        won = guess == self.secret
        over = won or not self.left
        return StepResult(
            observations={} if over else {"player": self.seen()},  # who acts next; if nobody does, it is over
            rewards={"player": float(won)},
            terminated=frozenset({"player"} if over else ()),
            info={"success": won} | ({"invalid": {"player": True}} if guess is None else {}),
        )

    def seen(self):
        return Observation(text=f"between {self.low} and {self.high}", legal=[str(n) for n in range(24)])

    def expert(self, agent):  # for the warm start: a beginner, who mostly tries the lowest number that is left
        careful = self.draw.random() < 0.75
        return Action(text=str(self.low if careful else self.draw.randint(self.low, self.high)))

    def close(self):
        pass
