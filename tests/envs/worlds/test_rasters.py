"""What must hold of the world `rasters`:

1. It keeps the contract of environments, with every kind, view and vocabulary.
2. Pictures are smooth, spotted or digits. Tiles put together give the picture again. Borders tell the order.
3. Jigsaws by hand: swaps, crops, zoom, answers about the present order. 4. Questions by hand: counting, colors, digits.
5. `reward: turns` gives the published numbers, also in play.
6. The expert solves everything, with tools and without. Random play rarely succeeds.
7. Noise and misread places are the same each time. Colors can be renamed. 8. Ends, snapshots, splits.
9. Impossible options are refused.
10. Images have the colors of the picture, in `scale` pixels for a place, as far as the agent has looked; with `text:
    none` texts show no picture.
"""

from __future__ import annotations

import numpy as np
import pytest

from palaestra.data import Action
from palaestra.envs.worlds.rasters.pictures import (
    GLYPHS,
    KINDS,
    SHADES,
    UNSEEN,
    arranged,
    best_order,
    glyph,
    mismatch,
    problem,
    smooth,
    tile,
)
from palaestra.envs.worlds.rasters.world import AGENT, Rasters, score
from palaestra.errors import ContractError, RecipeError
from palaestra.testing import check_environment


def say(env, text):
    return env.step({AGENT: Action(text=text)})


def begin(kind, number=0, **options):
    env = Rasters(kinds=[kind], **options)
    result = env.reset(env.tasks("train", number + 1, 0)[number])
    return env, result.observations[AGENT]


@pytest.mark.parametrize(
    "options",
    [{}, {"text": "brief", "tiles": 3, "noise": 0.2}, {"tools": False, "names": "renamed"},
     {"misread": 0.5, "reward": "turns"}, {"text": "none", "scale": 4}],
)  # fmt: skip
def test_1_contract(options):
    check_environment(Rasters(**options), make=lambda: Rasters(**options), episodes=4)


# ---- pictures ---------------------------------------------------------------------------------------------
def test_2_tiles():
    picture = np.arange(16).reshape(4, 4)
    assert tile(picture, 2, 1).tolist() == [[2, 3], [6, 7]] and tile(picture, 2, 2).tolist() == [[8, 9], [12, 13]]
    assert arranged(picture, 2, (0, 1, 2, 3)).tolist() == picture.tolist()
    assert arranged(picture, 2, (3, 1, 2, 0)).tolist() == [[10, 11, 2, 3], [14, 15, 6, 7], [8, 9, 0, 1], [12, 13, 4, 5]]
    assert mismatch(np.array([[1, 1, 3, 3], [1, 1, 3, 3], [2, 2, 4, 4], [2, 2, 4, 4]]), 2) == 4 * 2 + 4 * 1


@pytest.mark.parametrize("seed", range(20))
def test_2_borders_find_the_order(seed):
    found = problem("jigsaw", 2, seed)
    pixels = np.array(found.pixels)
    assert pixels.shape == (8, 8) and pixels.min() == 0 and pixels.max() == 9 and found.order != (0, 1, 2, 3)
    shown = arranged(pixels, 2, found.order)
    assert arranged(shown, 2, best_order(shown, 2)).tolist() == pixels.tolist()
    rows, columns = np.diff(pixels, axis=0), np.diff(pixels, axis=1)
    assert all(np.all(steps >= 0) or np.all(steps <= 0) for steps in (rows, columns))


def test_2_other_pictures():
    assert smooth(9, 3).shape == (9, 9) and len(problem("jigsaw", 3, 1).order) == 9
    for seed in range(30):
        digit = problem("digit", 2, seed)
        marks = GLYPHS[int(digit.answer)].count("1")
        pixels = np.array(digit.pixels)
        assert pixels.tolist() == glyph(int(digit.answer), seed).tolist() and pixels.max() < 4
        assert marks in [int((pixels == color).sum()) for color in (1, 2, 3)]
        count, color = problem("count", 2, seed), problem("color", 2, seed)
        assert int(count.answer) == (np.array(count.pixels) == count.subject).sum()
        shares = np.bincount(np.ravel(color.pixels), minlength=4)
        assert shares[("black", "red", "green", "blue").index(color.answer)] == shares.max()
    assert {problem("digit", 2, seed).answer for seed in range(80)} == {str(d) for d in range(10)}


# ---- play -------------------------------------------------------------------------------------------------
def test_3_a_jigsaw():
    env, seen = begin("jigsaw")
    start = env.snapshot()
    assert seen.text.startswith("order the tiles. ") and seen.text.count("/") == 7
    swapped = say(env, "swap 1 4")
    now = env.snapshot()
    assert now.order == (start.order[3], start.order[1], start.order[2], start.order[0]) and now.images == 1
    assert swapped.info["tool_call"] == {AGENT: 1.0} and swapped.info["images"] == {AGENT: 1.0}
    crop = say(env, "crop 2").observations[AGENT].text
    rows = [" ".join(map(str, row)) for row in tile(now.shown, 2, 1)]
    assert crop.startswith(f"order the tiles. 2: {' / '.join(rows)} ")
    assert env.snapshot().order == now.order
    right = [now.order.index(k) + 1 for k in range(4)]
    wrong = [right[1], right[0], *right[2:]]
    assert say(env, "answer " + " ".join(map(str, wrong))).info["success"] is False
    env.restore(now)
    end = say(env, "answer " + " ".join(map(str, right)))
    assert end.info["success"] is True and end.terminated == {AGENT} and end.rewards == {AGENT: 1.0}
    env.restore(now)
    assert say(env, "answer 1 2 3").info["success"] is False  # an answer with too few places is wrong


def test_3_in_order_at_last():
    env, _ = begin("jigsaw", text="brief")
    assert "1 to 2 jumps" in env._observe(env.snapshot()).text
    while env.snapshot().order != (0, 1, 2, 3):
        result = say(env, env.expert(AGENT).text)
        assert result.info["process"] == {AGENT: 1.0}
    assert env.expert(AGENT).text == "answer 1 2 3 4" and say(env, "answer 1 2 3 4").info["success"]


@pytest.mark.parametrize(
    "text", ["", "swap 1", "swap 1 9", "crop 0", "count red", "answer", "turn", "swap one two", "x" * 2000]
)
def test_3_what_cannot_be_read(text):
    env, _ = begin("jigsaw")
    result = say(env, text)
    assert result.info["invalid"] == {AGENT: True} and result.observations[AGENT].text.startswith(
        "order the tiles. error"
    )
    assert env.snapshot().images == 0


def test_4_questions():
    env, seen = begin("count")
    found = env.snapshot().problem
    color = ("black", "red", "green", "blue")[found.subject]
    assert seen.text == f"how many {color}?" and (seen.image == UNSEEN).all()
    counted = say(env, f"count {color}").observations[AGENT]
    assert counted.text == f"how many {color}? {found.answer} {color}." and (counted.image == UNSEEN).all()
    assert say(env, "swap 1 2").info["invalid"] == {AGENT: True}
    assert say(env, f"answer {found.answer}").info["success"] is True
    env, seen = begin("digit")
    assert seen.text == "which digit is drawn?"
    quarter = say(env, "crop 1").observations[AGENT].text
    assert quarter.count("/") == 3 and set(quarter.split("1: ")[1]) <= set("krgb /")
    env, seen = begin("color", tools=False)
    assert seen.text.startswith("which color is most frequent? ") and seen.text.count("/") == 7
    assert say(env, "zoom").info["invalid"] == {AGENT: True}


def test_5_published_numbers():
    cases = [(True, True, 3, 0.85), (True, False, 2, 0.70), (False, True, 4, -0.05), (False, False, 0, -0.25)]
    for solved, readable, images, expected in cases:
        assert score(solved=solved, readable=readable, images=images) == pytest.approx(expected)


def test_5_in_play():
    env, _ = begin("digit", reward="turns")
    answer = env.snapshot().problem.answer
    assert [say(env, text).rewards[AGENT] for text in ("zoom", "crop 1", "zoom")] == [0.0, 0.0, 0.0]
    kept = env.snapshot()
    assert say(env, f"answer {answer}").rewards[AGENT] == pytest.approx(0.85)
    env.restore(kept)
    end = say(env, "answer nothing")
    assert end.rewards[AGENT] == pytest.approx(-0.05) and end.info["format"] == {AGENT: 1.0}
    env.restore(kept)
    say(env, "??")
    assert say(env, f"answer {answer}").rewards[AGENT] == pytest.approx(0.65)  # three pictures, one act was unreadable
    env, _ = begin("digit", reward="turns", max_turns=2)
    say(env, "zoom")
    cut = say(env, "zoom")
    assert cut.truncated == {AGENT} and cut.rewards[AGENT] == pytest.approx(-0.25)


@pytest.mark.parametrize("options", [{}, {"tools": False}, {"tiles": 3}, {"names": "renamed"}])
def test_6_the_expert(options):
    env = Rasters(**options)
    for task in env.tasks("eval", 40, 1):
        result = env.reset(task)
        while result.observations:
            result = say(env, env.expert(AGENT).text)
        assert result.info["success"] is True and result.info["format"] == {AGENT: 1.0}


def test_6_random_play_rarely_succeeds():
    env, draw, won = Rasters(), np.random.default_rng(0), 0
    for task in env.tasks("eval", 100, 0):
        result = env.reset(task)
        while result.observations:
            legal = result.observations[AGENT].legal
            result = say(env, legal[int(draw.integers(len(legal)))])
            assert "invalid" not in result.info
        won += result.info["success"]
    assert won <= 20


def test_7_disturbances():
    env = Rasters(kinds=["jigsaw"], noise=0.5, max_turns=60)
    task = env.tasks("train", 1, 0)[0]
    runs = []
    for _ in range(2):
        env.reset(task)
        runs.append([say(env, "crop 1").observations[AGENT].text for _ in range(40)])
    busy = sum("crop is busy" in text for text in runs[0])
    assert runs[0] == runs[1] and 10 < busy < 30
    clear, _ = begin("jigsaw")
    wrong, _ = begin("jigsaw", misread=1.0)
    first, second = clear._seen(clear.snapshot()), wrong._seen(wrong.snapshot())
    assert (first != second).sum() == 1 and (second == wrong._seen(wrong.snapshot())).all()
    renamed, seen = begin("count", names="renamed")
    assert seen.text.split()[-1].rstrip("?") in ("gorp", "dax", "blick", "wug")
    assert say(renamed, "count red").info["invalid"] == {AGENT: True}


def test_8_episodes():
    env = Rasters(max_turns=3)
    with pytest.raises(ContractError, match="before `reset`"):
        say(env, "zoom")
    tasks = env.tasks("train", 60, 3)
    assert not {t.content_hash for t in tasks} & {t.content_hash for t in env.tasks("eval", 60, 3)}
    kinds = {env.reset(task).info["stratum"] for task in tasks}
    assert kinds == set(KINDS)
    results = [say(env, "zoom") for _ in range(3)]
    assert results[-1].truncated == {AGENT} and set(results[-1].last) == {AGENT} and not results[-1].info["success"]


@pytest.mark.parametrize(
    ("options", "fault"),
    [({"kinds": []}, "`kinds` is empty"), ({"kinds": ["count", "count"]}, "each once"), ({"kinds": ["chess"]}, "kinds"),
     ({"tiles": 4}, "tiles"), ({"misread": 2}, "misread")],
)  # fmt: skip
def test_9_impossible_options(options, fault):
    with pytest.raises(RecipeError, match=fault):
        Rasters(**options)


def test_10_images():
    env, seen = begin("color", scale=2)
    pixels = np.array(env.snapshot().problem.pixels)
    assert seen.image.shape == (16, 16, 3) and (seen.image == UNSEEN).all()
    part = say(env, "crop 3").observations[AGENT].image
    whole = say(env, "zoom").observations[AGENT].image
    assert (whole[::2, 1::2] == SHADES[pixels]).all() and {tuple(shade) for shade in SHADES} >= {
        tuple(pixel) for pixel in whole.reshape(-1, 3)
    }
    assert (part[8:, :8] == whole[8:, :8]).all() and (part[:8] == UNSEEN).all() and (part[:, 8:] == UNSEEN).all()
    open_, seen = begin("color", tools=False)
    assert (seen.image == SHADES[np.array(open_.snapshot().problem.pixels)]).all()
    jigsaw, seen = begin("jigsaw")
    assert (seen.image == 28 * jigsaw.snapshot().shown[:, :, None]).all()


def test_10_only_images_tell():
    env, seen = begin("digit", text="none")
    assert seen.text == "which digit is drawn?"
    assert say(env, "zoom").observations[AGENT].text == "which digit is drawn? the image shows the whole picture."
    assert say(env, "crop 2").observations[AGENT].text == "which digit is drawn? the image shows part 2."
    env, seen = begin("jigsaw", text="none")
    assert seen.text == "order the tiles." and say(env, "swap 1 2").observations[AGENT].text == "order the tiles."
    cropped = say(env, "crop 1").observations[AGENT].image
    assert (cropped[4:] == UNSEEN).all() and (cropped[:4, :4] != UNSEEN).all()
    assert not (say(env, "swap 1 2").observations[AGENT].image == UNSEEN).any()
