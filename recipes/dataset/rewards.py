# rewards.py: a reward function gets the reply and columns of its row by name, and returns a number.
def places(completion, answer):
    """The share of words that stand at their place."""
    said, right = completion.split(", "), answer.split(", ")
    return sum(one == other for one, other in zip(said, right, strict=False)) / max(len(said), len(right))
