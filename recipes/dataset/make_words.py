# make_words.py: writes lists of words and the same words in reverse order. Equal seeds give equal files.
import csv
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


def rows(count: int, words: list[str], most: int, seed: int = 0) -> list[dict]:
    """Different lists of three to `most` words."""
    draw, found = random.Random(seed), {}
    while len(found) < count:
        drawn = draw.sample(words, draw.randint(3, most))
        found[", ".join(drawn)] = {"words": ", ".join(drawn), "answer": ", ".join(reversed(drawn))}
    return list(found.values())


if __name__ == "__main__":
    folder = Path(__file__).parent
    lines = [json.dumps(row) + "\n" for row in rows(1536, WORDS, most=4, seed=1)]
    (folder / "words.jsonl").write_text("".join(lines), encoding="utf-8")
    with (folder / "short.csv").open("w", newline="", encoding="utf-8") as out:  # for models that are made on the spot
        writer = csv.DictWriter(out, ["words", "answer"], lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows(1200, WORDS[:12], most=3))
