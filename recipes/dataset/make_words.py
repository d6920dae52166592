# make_words.py: writes words.jsonl, lists of words and the same words in reverse order. Equal seeds give equal files.
import json
import random
from pathlib import Path

TEXT = (
    "apple bird boat book bread bridge cat chair cloud coin cup desk dog door drum egg field fish flag flower fork "
    "fox frog garden gate glass goat gold grass hand hat hill horse house ice key king lamp leaf lion map milk moon "
    "mouse nest night ocean owl paper pear pen pig plane queen rain ring river road rock rose salt sand sea sheep "
    "ship shoe snow soap song spoon star stone sun table tea tent tiger tower tree truck wall water whale wheel wind "
    "window wolf wood"
)
WORDS = TEXT.split()


def rows(count: int, seed: int = 0) -> list[dict]:
    """Different lists of three to five words."""
    draw, found = random.Random(seed), {}
    while len(found) < count:
        words = draw.sample(WORDS, draw.randint(3, 5))
        found[", ".join(words)] = {"words": ", ".join(words), "answer": ", ".join(reversed(words))}
    return list(found.values())


if __name__ == "__main__":
    lines = "".join(json.dumps(row) + "\n" for row in rows(1536))
    Path(__file__).with_name("words.jsonl").write_text(lines, encoding="utf-8")
