# make_questions.py: writes questions that a calculator answers, in eight wordings. Equal seeds give equal files.
import json
import random
from pathlib import Path

PEOPLE = "Anna Ben Carla David Emma Felix Greta Hugo Iris Jonas Klara Leo Mia Noah Olga Paul Rosa Sam Tina Victor"
GOODS = "apples books cards coins cups eggs flowers keys lamps pens plates shells stamps stones tickets toys"
NAMES, THINGS = PEOPLE.split(), GOODS.split()
WORDINGS = [
    ("What is {a} plus {b}, times {c}?", "({a} + {b}) * {c}"),
    ("Work out {a} minus {b} times {c}.", "{a} - {b} * {c}"),
    ("{name} has {a} {things} and gets {b} from each of {c} friends. How many {things} is that?", "{a} + {b} * {c}"),
    ("{name} sells {a} of {b} {things} and then buys {c}. How many {things} are there now?", "{b} - {a} + {c}"),
    ("A box holds {a} {things}. {name} fills {b} boxes and has {c} {things} left. How many in all?", "{a} * {b} + {c}"),
    ("There are {a} rows of {b} {things}. {name} takes {c} away. How many {things} stay?", "{a} * {b} - {c}"),
    ("{name} and two friends have {a}, {b} and {c} {things}. How many {things} have they together?", "{a} + {b} + {c}"),
    ("Each of {a} children has {b} {things} and finds {c} more. How many {things} do they have?", "{a} * ({b} + {c})"),
]


def rows(count: int, seed: int = 0) -> list[dict]:
    """Different questions with the call of the calculator that answers them."""
    draw, found = random.Random(seed), {}
    while len(found) < count:
        asked, worked = WORDINGS[len(found) % len(WORDINGS)]
        values = {name: draw.randint(2, 99) for name in "abc"}
        if worked.startswith("{b} -"):  # nobody sells more than there is
            values["a"], values["b"] = sorted((values["a"], values["b"]))
        if worked.endswith("* {b} - {c}"):
            values["c"] = draw.randint(1, values["a"] * values["b"])
        question = asked.format(**values, name=draw.choice(NAMES), things=draw.choice(THINGS))
        expression = worked.format(**values)
        calls = [{"name": "calculator", "arguments": {"expression": expression}}]
        found[question] = {"question": question, "answer": str(eval(expression)), "calls": calls}
    return list(found.values())


if __name__ == "__main__":
    lines = [json.dumps(row) + "\n" for row in rows(2048)]
    (Path(__file__).parent / "questions.jsonl").write_text("".join(lines), encoding="utf-8")
