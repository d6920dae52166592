# rewards.py: a reward is a function of the table of all steps, and gives a number for each.
from palaestra.data import StepTable


def quick(table: StepTable, *, price: float = 0.05):
    """What the environment pays, less a price for each guess."""
    return table["reward"] - price
