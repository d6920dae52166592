"""What must hold of `dataset`:

1. Files of all formats give the same problems, with the columns of TRL and of verl.
2. What is held out never occurs in training, and an evaluation has no problem twice.
3. The agent reads the system message, the examples and the question.
4. Faults of files name the file and the row.
5. Functions written for TRL and for verl, and plain ones, judge replies; a fault of theirs fails the episode, and so
   does a row to which none of them applies.
6. A conversation goes on as long as the function `respond` answers.
7. A recipe finds the files beside it, from any working folder, also after the run is opened again.
"""

from __future__ import annotations

import asyncio
import csv
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from palaestra.data import Action
from palaestra.envs.worlds.dataset.problems import Layout
from palaestra.envs.worlds.dataset.records import read_records
from palaestra.envs.worlds.dataset.world import AGENT, Dataset
from palaestra.errors import EpisodeFailure, InvalidData, RecipeError
from palaestra.recipe import Recipe, load
from palaestra.testing import check_environment
from tests.extras import imported, skip_without
from tests.messages import told

ROWS = [{"prompt": f"What is {n} + {n}?", "answer": str(2 * n), "level": n % 3} for n in range(40)]


@pytest.fixture
def file(tmp_path):
    def write(rows, name="train.jsonl"):
        path = tmp_path / name
        path.write_text("\n".join(row if isinstance(row, str) else json.dumps(row) for row in rows))
        return str(path)

    return write


def every(env):
    """The problems of both parts of a file, as text → answer."""
    return {one.observation().text: one.columns.get("answer") for one in env._given.problems}


def judged(env, text, *, split="train", task=None):
    """The result of one reply to the first problem of a split."""
    env.reset(task or env.tasks(split, 1, 0)[0])
    return asyncio.run(env.step({AGENT: Action(text=text)}))


# ---- rule 1 -----------------------------------------------------------------------------------------------
def written(path, rows):
    """Write rows in the format of the name of a file."""
    match path.suffix:
        case ".jsonl":
            path.write_text("\n".join(map(json.dumps, rows)))
        case ".json":
            path.write_text(json.dumps(rows))
        case ".csv" | ".tsv":
            with path.open("w", newline="") as out:
                writer = csv.DictWriter(out, rows[0], delimiter="\t" if path.suffix == ".tsv" else ",")
                writer.writeheader()
                writer.writerows(rows)
        case ".parquet":
            skip_without("pyarrow")
            import pyarrow
            import pyarrow.parquet

            pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path)
        case ".arrow":
            datasets = imported("datasets")
            datasets.Dataset.from_list(rows).save_to_disk(path)
    return path


@pytest.mark.parametrize("name", ["a.jsonl", "a.json", "a.csv", "a.tsv", "a.parquet", "a.arrow"])
def test_formats_give_the_same_problems(tmp_path, name):
    env = Dataset(path=str(written(tmp_path / name, ROWS)))
    assert every(env) == {row["prompt"]: row["answer"] for row in ROWS}
    check_environment(env, make=lambda: Dataset(path=str(tmp_path / name)))
    assert env.difficulty(env.tasks("train", 1, 0)[0]) in (0, 1, 2)


def test_folders_and_beginnings_of_file_names(tmp_path):
    for name in ("train-0.jsonl", "train-1.jsonl", "test-0.jsonl"):
        written(tmp_path / name, [{"prompt": name, "answer": "yes"}])
    assert set(every(Dataset(path=f"{tmp_path}/train"))) == {"train-0.jsonl", "train-1.jsonl"}
    with told(InvalidData, "several splits: test, train") as raised:
        Dataset(path=str(tmp_path))
    assert raised.value.options == (f"{tmp_path}/test", f"{tmp_path}/train")
    assert set(every(Dataset(path=raised.value.options[1]))) == {"train-0.jsonl", "train-1.jsonl"}


def test_folders_of_the_package_datasets(tmp_path):
    datasets = imported("datasets")
    whole, part = datasets.Dataset.from_list(ROWS), datasets.Dataset.from_list(ROWS[:5])
    whole.save_to_disk(tmp_path / "whole", num_shards=3)
    assert every(Dataset(path=f"{tmp_path}/whole")) == {row["prompt"]: row["answer"] for row in ROWS}
    datasets.DatasetDict(train=whole, test=part).save_to_disk(tmp_path / "both")
    env = Dataset(path=f"{tmp_path}/both/train", eval=f"{tmp_path}/both/test")
    assert len(env._given.train) == 35 and len(env._given.held_out) == 5
    with told(InvalidData, "several splits"):
        Dataset(path=f"{tmp_path}/both")


def test_data_sets_of_the_hub_that_were_downloaded(tmp_path, monkeypatch):
    place = tmp_path / "hub/datasets--some--sums"
    (place / "refs").mkdir(parents=True)
    (place / "refs/main").write_text("abc")
    (place / "snapshots/abc/main").mkdir(parents=True)
    written(place / "snapshots/abc/main/train-0.jsonl", ROWS)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr("huggingface_hub._snapshot_download.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    assert every(Dataset(path="some/sums/main/train")) == {row["prompt"]: row["answer"] for row in ROWS}
    with told(InvalidData, "hf download --repo-type dataset some/others"):
        Dataset(path="some/others/main")


@pytest.mark.parametrize(
    "row",
    [
        {"prompt": "2 + 2?", "solution": "4"},
        {"prompt": "2 + 2?", "ground_truth": "4"},
        {"prompt": [{"role": "user", "content": "2 + 2?"}], "answer": "4"},
        {
            "data_source": "sums",
            "prompt": [{"role": "user", "content": "2 + 2?"}],
            "reward_model": {"style": "rule", "ground_truth": "4"},
            "extra_info": {"index": 3},
        },
        {"messages": [{"role": "user", "content": "2 + 2?"}, {"role": "assistant", "content": "4"}], "answer": "4"},
    ],
    ids=["solution", "ground_truth", "conversational", "verl", "messages"],
)
def test_columns_of_trl_and_verl(file, row):
    env = Dataset(path=file([row]), split=1e-9)
    task = env.tasks("train", 1, 0)[0]
    assert env.reset(task).observations[AGENT].text == "2 + 2?"
    assert env.expert(AGENT).text == "4"
    assert judged(env, "4").info == {"exact_match": 1.0, "success": True}
    assert judged(env, "5").info == {"exact_match": 0.0, "success": False}


def test_columns_of_other_names(file):
    rows = [{"question": "2 + 2?", "final": {"value": "4"}, "reasoning": "because", "hard": "Level 5"}]
    env = Dataset(
        path=file(rows), split=1e-9, prompt="question", answer="final.value", completion="reasoning", difficulty="hard"
    )
    task = env.tasks("train", 1, 0)[0]
    assert env.difficulty(task) == task.difficulty == 5 and judged(env, "4").info["success"]
    env.reset(task)
    assert env.expert(AGENT).text == "because"


def test_a_row_without_a_level_is_named(file):
    env = Dataset(path=file([*ROWS[:3], {**ROWS[3], "level": None}]), split=1e-9)
    last = next(task for task in env.tasks("train", 4, 0) if task.difficulty is None)
    with told(InvalidData, "train.jsonl:4"):
        env.difficulty(last)


# ---- rule 2 -----------------------------------------------------------------------------------------------
@given(
    questions=st.lists(st.text("ab", min_size=1, max_size=5), min_size=1, max_size=60),
    split=st.floats(0.05, 0.9),
    seed=st.integers(0, 99),
)
@settings(max_examples=60, deadline=None)
def test_splits_share_no_problem(tmp_path_factory, questions, split, seed):
    path = tmp_path_factory.mktemp("splits") / "a.jsonl"
    path.write_text("\n".join(json.dumps({"prompt": text, "answer": "yes"}) for text in questions))
    env = Dataset(path=str(path), split=split)
    given = env._given
    parts = {"train": [one.prompt for _, one in given.train], "eval": [one.prompt for _, one in given.held_out]}
    assert not {*parts["train"]} & {*parts["eval"]} and {*parts["train"], *parts["eval"]} == {*questions}
    assert len(parts["eval"]) == len({*parts["eval"]})
    if parts["eval"]:
        drawn = env.tasks("eval", len(parts["eval"]), seed)
        assert len({task.content_hash for task in drawn}) == len(drawn)
    if parts["train"]:
        twice = env.tasks("train", 2 * len(parts["train"]), seed)
        assert [sorted(t.seed for t in half) for half in (twice[: len(twice) // 2], twice[len(twice) // 2 :])] == [
            sorted(number for number, _ in env._given.train)
        ] * 2


def test_the_split_of_a_row_does_not_depend_on_the_others(file):
    whole, half = Dataset(path=file(ROWS, "a.jsonl")), Dataset(path=file(ROWS[::2], "b.jsonl"))
    kept = {one.prompt for _, one in whole._given.held_out} & {row["prompt"] for row in ROWS[::2]}
    assert kept == {one.prompt for _, one in half._given.held_out}


def test_a_file_of_its_own_for_evaluations(file):
    env = Dataset(path=file(ROWS), eval=file(ROWS[:10], "test.jsonl"))
    assert len(env._given.train) == 30 and len(env._given.held_out) == 10
    task = env.tasks("eval", 10, 0)[0]
    assert env.reset(task).observations[AGENT].text == ROWS[task.params["row"]]["prompt"]
    check_environment(env)


def test_too_few_problems(file):
    with told(InvalidData, "only 2 different problems"):
        Dataset(path=file(ROWS), eval=file([*ROWS[:2], *ROWS[:2]], "test.jsonl")).tasks("eval", 3, 0)
    with told(InvalidData, "also in `eval`"):
        Dataset(path=file(ROWS), eval=file(ROWS, "test.jsonl")).tasks("train", 1, 0)


def test_columns_that_tell_problems_apart(file):
    rows = [{"prompt": "Guess.", "answer": str(n)} for n in range(20)]
    assert len(Dataset(path=file(rows), split=0.5)._given.held_out) <= 1
    env = Dataset(path=file(rows), split=0.5, problem=("prompt", "answer"))
    assert len(env._given.held_out) + len(env._given.train) == 20 and env._given.held_out


def test_a_file_that_has_changed(file):
    task = Dataset(path=file(ROWS)).tasks("train", 1, 0)[0]
    other = Dataset(path=file([{**row, "prompt": row["prompt"] + "?"} for row in ROWS]))
    with told(InvalidData, "no longer"):
        other.reset(task)


# ---- rule 3 -----------------------------------------------------------------------------------------------
def test_system_examples_and_template(file):
    path = file([{"words": "a, b", "answer": "b, a"}])
    env = Dataset(
        path=path,
        split=1e-9,
        template="Reverse: {words}.",
        system="Be brief.",
        fewshot=({"words": "c, d", "answer": "d, c"}, {"role": "user", "content": "Good."}),
    )
    seen = env.reset(env.tasks("train", 1, 0)[0]).observations[AGENT]
    assert [(one["role"], one["content"]) for one in seen.messages] == [
        ("system", "Be brief."),
        ("user", "Reverse: c, d."),
        ("assistant", "d, c"),
        ("user", "Good."),
        ("user", "Reverse: a, b."),
    ]
    assert seen.text == "Be brief.\nReverse: c, d.\nd, c\nGood.\nReverse: a, b."
    plain = Dataset(path=path, split=1e-9, template="Reverse: {words}.", system="Be brief.")
    seen = plain.reset(plain.tasks("train", 1, 0)[0]).observations[AGENT]
    assert (seen.instruction, seen.text, seen.messages) == ("Be brief.", "Reverse: a, b.", None)


# ---- rule 4 -----------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("rows", "options", "word"),
    [
        (["{"], {}, "train.jsonl:1"),
        (["[1]"], {}, "not a JSON object"),
        ([], {}, "no rows"),
        ([ROWS[0], {"prompt": ""}], {}, "train.jsonl:2"),
        ([ROWS[0], {"answer": "4"}], {}, "`prompt` is missing"),
        ([{"prompt": [{"role": "human", "content": "x"}]}], {}, "`role` is 'human'"),
        ([ROWS[0], {"prompt": "x"}], {"answer": "answer"}, "`answer` is missing"),
        ([{"words": "a"}], {"template": "{wrods}"}, "`wrods` is missing"),
        ([{"prompt": "x", "level": "easy"}], {"difficulty": "level"}, "no number"),
    ],
)
def test_faults_of_files(file, rows, options, word):
    with told(InvalidData, word):
        Dataset(path=file(rows), **options)


def test_faults_of_other_files(file, tmp_path):
    (tmp_path / "a.csv").write_text("prompt,answer\nwhat, is it,4\n")
    with told(InvalidData, "a.csv:2"):
        Dataset(path=str(tmp_path / "a.csv"))
    (tmp_path / "a.txt").write_text("x")
    with told(InvalidData, ".txt"):
        Dataset(path=str(tmp_path / "a.txt"))
    with told(InvalidData, "no such file"):
        Dataset(path=str(tmp_path / "nothing.jsonl"))


# ---- rule 5 -----------------------------------------------------------------------------------------------
FUNCTIONS = """
import asyncio
import json

def correct(completions, answer, **columns):
    assert set(columns) >= {"prompts", "completion_ids", "level"}, columns
    return [float(said == right) for said, right in zip(completions, answer, strict=True)]

def length(completions, **columns):
    return [-float(len(said)) for said in completions]

async def slow(completion, answer, level):
    await asyncio.sleep(0)
    return None if level == 0 else 0.25

def compute_score(data_source, solution_str, ground_truth, extra_info=None):
    return {"score": float(solution_str == ground_truth), "letters": len(solution_str)}

def near(completion, answer, *, within: float = 0.0):
    return float(abs(int(completion) - int(answer)) <= within)

def broken(completion):
    return 1 / 0

def deep(completion):
    return json.loads("{")

def nan(completion):
    return float("nan")

def text(completion):
    return "good"

def single(completions, **columns):
    return 1.0

def lost(completion, difficulty_of_row):
    return 1.0
"""


@pytest.fixture
def functions(tmp_path):
    (tmp_path / "rewards.py").write_text(FUNCTIONS)
    return lambda *names: [f"{tmp_path}/rewards.py:{name}" for name in names]


def test_functions_of_all_conventions(file, functions):
    rewards = functions("correct", "length", "slow", "compute_score")
    env = Dataset(path=file(ROWS), reward=rewards, weights=(1.0, 0.1, 2.0, 1.0), success="correct > 0.5")
    task = next(task for task in env.tasks("train", 30, 0) if task.difficulty == 1)
    right = str(2 * task.params["row"])
    result = judged(env, right, task=task)
    assert result.info == {
        "correct": 1.0,
        "length": -len(right),
        "slow": 0.25,
        "compute_score": 1.0,
        "letters": len(right),
        "success": True,
    }
    assert result.rewards[AGENT] == pytest.approx(1 - 0.1 * len(right) + 0.5 + 1)
    easy = next(task for task in env.tasks("train", 30, 0) if task.difficulty == 0)
    assert "slow" not in judged(env, "x", task=easy).info


def test_rows_to_which_functions_do_not_apply(file):
    rows = [
        {"prompt": "2 + 2?", "answer": "4"},
        {"prompt": "Write `x = 1`.", "tests": "assert x == 1"},
        {"prompt": "x"},
    ]
    env = Dataset(path=file(rows), split=1e-9, reward=["exact_match", {"code": {"require": "none"}}])
    sums, code, neither = sorted(env.tasks("train", 3, 0), key=lambda task: task.params["row"])
    assert judged(env, "4", task=sums).info == {"exact_match": 1.0, "success": True}
    assert judged(env, "x = 1", task=code).rewards[AGENT] == 1
    with told(EpisodeFailure, "train.jsonl:3"):
        judged(env, "None", task=neither)


def test_a_column_that_only_evaluations_lack(file):
    with told(RecipeError, "test.jsonl"):
        Dataset(path=file(ROWS), eval=file([{"prompt": "x"}], "test.jsonl"))


def test_a_function_with_options(file, functions):
    (name,) = functions("near")
    for within, success in ((0.0, False), (1.0, True)):
        env = Dataset(path=file([{"prompt": "2 + 2?", "answer": "4"}]), split=1e-9, reward={name: {"within": within}})
        assert judged(env, "5").info["success"] is success


def test_replies_of_conversations_are_messages(file, functions):
    rewards = imported("trl.rewards")
    rows = [{"prompt": [{"role": "user", "content": "1/3?"}], "solution": r"\frac{1}{3}"}]
    env = Dataset(
        path=file(rows), split=1e-9, reward=["trl.rewards:accuracy_reward", "trl.rewards:think_format_reward"]
    )
    said = r"<think>easy</think> \boxed{\frac{1}{3}}"
    assert judged(env, said).info == {"accuracy_reward": 1.0, "think_format_reward": 1.0, "success": True}
    assert judged(env, r"\boxed{\frac{1}{2}}").info["accuracy_reward"] == 0.0
    lists = [[{"role": "assistant", "content": said}]]
    assert rewards.accuracy_reward(lists, solution=[r"\frac{1}{3}"]) == [1.0]


@pytest.mark.parametrize("name", ["broken", "deep", "nan", "text", "single"])
def test_a_fault_of_a_function_fails_the_episode(file, functions, name):
    env = Dataset(path=file(ROWS[:1]), split=1e-9, reward=functions(name))
    lines = FUNCTIONS.splitlines()
    begins = lines.index(next(line for line in lines if line.startswith(f"def {name}("))) + 1
    with told(EpisodeFailure, "train.jsonl:1") as raised:
        judged(env, "4")
    reached = begins + (name in ("broken", "deep"))  # an error stands in the line that raised it
    assert f"(rewards.py, line {reached})" in raised.value.what


@pytest.mark.parametrize(
    ("names", "options", "word"),
    [
        (["lost"], {}, "difficulty_of_row"),
        (["correct", "correct"], {}, "two reward functions"),
        (["correct"], {"weights": (1.0, 2.0)}, "`weights`"),
        (["correct"], {"success": "right > 1"}, "cannot be read"),
        ([], {}, "empty"),
        (["correct"], {"max_turns": 3}, "`respond`"),
        (["correct"], {"respond": "reply"}, "names no function"),
        (["correct"], {"respond": "chat.py:reply"}, "`max_turns: 1`"),
    ],
)
def test_options_that_cannot_work(file, functions, names, options, word):
    with told(RecipeError, word):
        Dataset(path=file(ROWS), reward=functions(*names), **options)


# ---- rule 6 -----------------------------------------------------------------------------------------------
def test_conversations(file, tmp_path):
    (tmp_path / "chat.py").write_text(
        "async def reply(messages, secret, **columns):\n"
        "    said = messages[-1]['content']\n"
        "    return None if said == secret else f'not {said}, after {len(messages)} messages'\n"
    )
    rows = [{"prompt": "Guess my word.", "secret": "tea", "answer": "tea"}]
    env = Dataset(path=file(rows), split=1e-9, respond=f"{tmp_path}/chat.py:reply", max_turns=3)
    env.reset(env.tasks("train", 1, 0)[0])
    first = asyncio.run(env.step({AGENT: Action(text="milk")}))
    assert first.observations[AGENT].text == "not milk, after 2 messages" and not first.terminated
    kept = env.snapshot()
    assert asyncio.run(env.step({AGENT: Action(text="tea")})).info["success"]
    env.restore(kept)
    for said, over in (("water", False), ("juice", True)):
        result = asyncio.run(env.step({AGENT: Action(text=said)}))
        assert bool(result.terminated) is over
    assert result.info["success"] is False


@pytest.mark.parametrize("name", ["plain", "columns", "Made"])
def test_what_respond_may_take(file, tmp_path, name):
    (tmp_path / "chat.py").write_text(
        "def plain(messages):\n    return 'more'\n"
        "def columns(messages, answer, *, level=0):\n    return 'more' if answer else None\n"
        "class Made:\n    def __call__(self, messages, **columns):\n        return 'more'\n"
        "def lost(messages, secret):\n    return 'more'\n"
        "def nothing(**columns):\n    return 'more'\n"
    )
    env = Dataset(path=file(ROWS), respond=f"{tmp_path}/chat.py:{name}", max_turns=2)
    assert judged(env, "x").observations[AGENT].text == "more"
    for other, word in (("lost", "`secret`"), ("nothing", "first parameter")):
        with told(RecipeError, word):
            Dataset(path=file(ROWS), respond=f"{tmp_path}/chat.py:{other}", max_turns=2)


# ---- rule 7 -----------------------------------------------------------------------------------------------
def test_a_recipe_finds_the_files_beside_it(file, functions, tmp_path, monkeypatch):
    file(ROWS)
    functions()
    (tmp_path / "recipe.yaml").write_text(
        "environment: {dataset: {path: train.jsonl, reward: [rewards.py:correct, {rewards.py:near: {within: 1}}]}}\n"
        "policies: {main: {policy: language}}\n"
        "advantage: grpo\n"
    )
    monkeypatch.chdir(tmp_path.parent)
    recipe = load([str(tmp_path / "recipe.yaml")])
    again = Recipe.from_json(json.loads(json.dumps(recipe.to_json())))
    for one in (recipe, again):
        options = one.settings.environment.options
        assert options["path"] == str(tmp_path / "train.jsonl")
        assert options["reward"] == [f"{tmp_path}/rewards.py:correct", {f"{tmp_path}/rewards.py:near": {"within": 1}}]
    assert recipe.rows["environment.dataset.path"].value == "train.jsonl"


def test_the_words_of_the_recipe_are_those_of_its_script():
    options = load(["dataset/recipe.yaml"]).settings.environment.options
    env = Dataset(**options)
    assert len(env._given.held_out) >= 256 and len(env._given.train) >= 512
    task = env.tasks("eval", 1, 0)[0]
    env.reset(task)
    words = env.state.problem.columns["words"].split(", ")
    assert judged(env, ", ".join(reversed(words)), task=task).info["success"]


def test_demonstrations_of_the_same_file_stand_beside_the_recipe(file, tmp_path, monkeypatch):
    file([{**row, "completion": row["answer"]} for row in ROWS])
    (tmp_path / "sft.yaml").write_text(
        "environment: {dataset: {path: train.jsonl}}\n"
        "experience: {dataset: {path: train.jsonl, batch: 4}}\n"
        "policies: {main: {policy: language}}\n"
        "loss: behavior_cloning\n"
    )
    monkeypatch.chdir(tmp_path.parent)
    options = load([str(tmp_path / "sft.yaml")]).settings.experience.options
    assert options["path"] == str(tmp_path / "train.jsonl")
    assert [len(record) for record in read_records(tmp_path / "train.jsonl", AGENT).records] == [1] * len(ROWS)


def test_a_file_is_made_into_problems_once(tmp_path, monkeypatch):
    path, made = tmp_path / "rows.jsonl", []
    plain = Layout._problem

    def counted(self, row):
        made.append(row.place)
        return plain(self, row)

    monkeypatch.setattr(Layout, "_problem", counted)
    path.write_text("".join(json.dumps({"prompt": f"p{n}", "answer": "x"}) + "\n" for n in range(20)))
    for _ in range(3):
        Dataset(path=str(path))
    assert len(made) == 20
    Dataset(path=str(path), template="{prompt}!")  # another option makes other problems
    assert len(made) == 40
    path.write_text(json.dumps({"prompt": "new question", "answer": "x"}) + "\n")
    Dataset(path=str(path))
    assert len(made) == 41
