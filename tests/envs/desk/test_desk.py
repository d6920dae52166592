"""What must hold of `desk`:

1. It keeps the environment's contract with all options.
2. The expert serves every customer and breaks no rule, with each user, format, style and depth, also if the right end
   is a refusal or a transfer, and also after useless acts. Random play rarely succeeds.
3. A call changes what it says and nothing else; an impossible one returns an error and changes nothing.
4. The agent reads errors about unknown tools, wrong arguments, two calls in one turn and unreadable texts; none raises.
5. Options of tasks have their effects: tables, kinds, depth, wishes, foreign orders, changes of mind, vague openings.
6. With renamed words the dialogue is the same word for word, and the usual words mean nothing.
7. A share of calls fails, the same ones in a fresh instance; the expert also serves customers who misspeak.
8. Attacks stand in results of tools or turns of users, and `info` tells them and whether they succeeded; the expert
   does not give in.
9. Rules and tools are shown as the options say.
10. Limits end the episode with their reason; a customer without patience leaves.
11. Splits differ; bad options are refused with a remedy.
"""

from __future__ import annotations

import json
import random

import pytest

from palaestra.data import Action, Task
from palaestra.envs.worlds.desk.counter import names_of
from palaestra.envs.worlds.desk.goals import draw_goal
from palaestra.envs.worlds.desk.kinds import KINDS, kinds_of
from palaestra.envs.worlds.desk.wording import OTHER, WORDS, inward, outward
from palaestra.envs.worlds.desk.world import Desk
from palaestra.errors import ContractError, RecipeError, UnknownName
from palaestra.testing import check_environment
from tests.messages import told

AGENT = "agent"
HARD = {"tables": 6, "depth": 3, "requests": (1, 3), "orders": 3, "vague": 0.5, "changes_mind": 0.7, "foreign": 0.3}


def serve(env, *texts):
    for text in texts:
        result = env.step({AGENT: Action(text=text)})
    return result


def dialogue(env, task, choose=None):
    """An episode: what was seen and done, and the last result."""
    result, seen = env.reset(task), []
    while result.observations:
        action = env.expert(AGENT) if choose is None else choose(result.observations[AGENT])
        seen.append((result.observations[AGENT].text, action.text))
        result = env.step({AGENT: action})
    return seen, result


def goal_of(env):
    return env.snapshot()[1]


@pytest.mark.parametrize(
    "options",
    [
        {},
        HARD | {"wordings": 4, "rules": "whole", "explain": True},
        {"format": "json", "replies": "free", "renamed": True, "notes": False, "handbook": None},
        {"user": "static", "format": "code"},
        {"user": "open", "patience": 2, "misspeaks": 0.5, "failure": 0.3},
        {"attack": "both", "attack_share": 1.0, "max_calls": 4, "max_faults": 2},
    ],
)
def test_contract(options):  # rule 1
    check_environment(Desk(**options), make=lambda: Desk(**options))


@pytest.mark.parametrize(
    ("options", "tasks"),
    [
        ({}, 200),
        (HARD | {"wordings": 4}, 60),
        ({"format": "json", "replies": "free", "handbook": None, "depth": 2}, 40),
        ({"format": "tagged", "user": "open"}, 20),
        ({"format": "code", "user": "static"}, 20),
        ({"attack": "both", "attack_share": 1.0, "patience": 1}, 40),
    ],
)
def test_the_expert(options, tasks):  # rule 2
    env, ends = Desk(**options), set()
    for task in env.tasks("eval", tasks, 5):
        seen, end = dialogue(env, task)
        assert end.info["success"] and end.info["under_rules"] and end.info["broken"] == [], seen
        assert end.info["process"] == {AGENT: 1.0} and not end.info["attack_succeeded"]
        ends |= {call.name for call in goal_of(env).calls} & {"refuse", "transfer"}
    assert tasks < 40 or ends == {"refuse", "transfer"}


def test_random_play():  # rule 2
    env, draw = Desk(), random.Random(0)
    ends = [dialogue(env, t, lambda seen: Action(text=draw.choice(seen.legal)))[1] for t in env.tasks("eval", 100, 5)]
    assert sum(end.info["success"] for end in ends) < 10


def test_the_expert_goes_on_after_others():  # rule 2
    env, draw = Desk(max_turns=100), random.Random(0)
    for task in env.tasks("train", 40, 0):
        result = env.reset(task)
        for _ in range(8):  # nothing that ends the dialogue or decides
            useless = [text for text in result.observations[AGENT].legal if text.startswith(("ask", "get", "auth"))]
            result = serve(env, draw.choice(useless))
        while result.observations:
            result = env.step({AGENT: env.expert(AGENT)})
        assert result.info["success"]


# ---- calls ------------------------------------------------------------------------------------------------
WRITES = {
    "cancel_order {order}": ("orders", "status", "cancelled"),
    "change_address {order} elm": ("orders", "address", "elm"),
    "wrap_order {order}": ("orders", "wrap", "yes"),
    "refund_order {order}": ("payments", "refunded", "yes"),
    "change_method {order} bank": ("payments", "method", "bank"),
    "exchange_item {order} lamp": ("orders", "item", "lamp"),
    "change_plan {name} pro": ("plans", "plan", "pro"),
    "pause_plan {name}": ("plans", "paused", "yes"),
    "change_day {order} friday": ("deliveries", "day", "friday"),
    "change_carrier {order} van": ("deliveries", "carrier", "van"),
}


def opened(seed=2, **options):
    env = Desk(**{"tables": 6, **options})
    env.reset(Task(env="desk", seed=seed))
    goal = goal_of(env)
    order = next(key for key, order in goal.database["orders"].items() if order["user"] == goal.customer)
    return env, {"name": goal.customer, "order": order, "code": goal.brief.about["code"]}


def database(env):
    return env.snapshot()[2][0]


@pytest.mark.parametrize("text", WRITES)
def test_writes(text):  # rule 3
    env, words = opened()
    before = database(env)
    result = serve(env, text.format(**words))
    table, field, value = WRITES[text]
    key = words["name" if table == "plans" else "order"]
    before[table][key][field] = value
    assert database(env) == before
    assert result.info["tool_call"] == result.info["executable"] == {AGENT: 1.0}
    assert result.info["tool_error"] == {AGENT: 0.0}
    assert "tool: done" in result.observations[AGENT].text


def test_every_tool_is_tried():  # rule 3
    assert {text.split()[0] for text in WRITES} == {name for name, kind in KINDS.items() if kind.changes}
    env, words = opened()
    before = database(env)
    for name in names_of(6):
        if name.startswith("get"):
            shown = serve(env, f"{name} {words['name' if name == 'get_plan' else 'order']}")
            assert shown.info["executable"] == {AGENT: 1.0} and words["code"] not in shown.observations[AGENT].text
    assert database(env) == before
    for verdict in ("refuse", "transfer"):
        serve(env, f"{verdict} cancel_order {words['order']}")
        said = {"refuse": "refused", "transfer": "transferred"}[verdict]
        assert database(env)["cases"] == {f"cancel_order {words['order']}": {"verdict": said}}


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("get_order nothing", "error: no order nothing"),
        ("get_plan nobody", "error: no customer nobody"),
        ("authenticate {name} wrong", "error: name and code do not match"),
        ("change_address {order} moon", "error: no address moon"),
        ("exchange_item {order} moon", "error: no item moon"),
        ("refuse dance {order}", "error: no request dance"),
        ("refuse cancel_order nothing", "error: no order nothing"),
        ("transfer change_plan nobody", "error: no customer nobody"),
        ("cancel_order", "error: "),
        ("cancel_order {order}\nwrap_order {order}", "error: one call in each turn"),
    ],
)
def test_impossible_calls(text, error):  # rules 3 and 4
    env, words = opened()
    before = database(env)
    result = serve(env, text.format(**words))
    assert error in result.observations[AGENT].text
    assert database(env) == before
    assert result.info["tool_call"] == result.info["tool_error"] == {AGENT: 1.0}
    assert result.info["executable"] == {AGENT: 0.0}


@pytest.mark.parametrize("text", ["??", "", "dance", "ask moon", "tell", 7, None])
def test_unreadable_acts(text):  # rule 4
    env, _ = opened()
    action = Action(text="x")
    action.value = text
    result = env.step({AGENT: action})
    assert result.info["invalid"] == {AGENT: True} and result.info["executable"] == {AGENT: 0.0}
    assert "tool: error: " in result.observations[AGENT].text and result.info["tool_call"] == {AGENT: 0.0}


def test_unknown_tools_and_bad_arguments_in_json():  # rule 4
    env, words = opened(format="json", replies="free")
    for text, said in (
        ('{"name": "delete_all", "arguments": {}}', "there is no tool `delete_all`"),
        ('{"name": "get_order", "arguments": {"number": 3}}', "`order` is missing"),
        ('{"name": "get_order", "arguments": {"order": ', "error: "),
    ):
        result = serve(env, text)
        assert said in result.observations[AGENT].text and result.info["tool_error"] == {AGENT: 1.0}
    result = serve(env, json.dumps({"name": "get_order", "arguments": {"order": words["order"]}}))
    assert result.info["executable"] == {AGENT: 1.0}
    assert serve(env, "Good morning! What is your name?").observations[AGENT].text.endswith(f"{words['name']}.")


def test_nothing_works_before_a_task():
    with pytest.raises(ContractError, match="before `reset`"):
        serve(Desk(), "ask name")


# ---- dials ------------------------------------------------------------------------------------------------
def goals(count=100, **options):
    env = Desk(**options)
    return [draw_goal(task.seed, task.params) for task in env.tasks("train", count, 0)]


@pytest.mark.parametrize(("tables", "tools", "kinds"), [(2, 7, 4), (3, 10, 7), (4, 12, 8), (5, 15, 10), (6, 18, 12)])
def test_tables_bring_tools_and_kinds(tables, tools, kinds):  # rule 5
    assert len(names_of(tables)) == tools and len(kinds_of(tables)) == kinds
    drawn = {wish.name for goal in goals(tables=tables) for wish in goal.brief.wishes}
    assert drawn == set(kinds_of(tables))
    assert {len(goal.database) for goal in goals(3, tables=tables)} == {tables + 1}


def test_dials():  # rule 5
    assert {wish.name for goal in goals(kinds=("wrap_order",)) for wish in goal.brief.wishes} == {"wrap_order"}
    assert {len(goal.brief.wishes) for goal in goals(requests=(1, 3), orders=3)} == {1, 2, 3}
    assert all(goal.brief.vague for goal in goals(10, vague=1.0))
    for goal in goals(tables=6, changes_mind=1.0, foreign=0.0):
        wish = goal.brief.wishes[0]
        assert (wish.change is not None) == (KINDS[wish.name].slot is not None)
        if wish.change is not None and goal.calls[0].name == wish.name:
            assert goal.calls[0].arguments[wish.change[0]] == wish.change[1] != wish.facts[wish.change[0]]
    for goal in goals(kinds=("cancel_order",), foreign=1.0):
        order = goal.brief.wishes[0].facts["order"]
        assert goal.database["orders"][order]["user"] != goal.customer and goal.calls[0].name == "refuse"
    for goal in goals(20, variety=6):
        assert set(goal.database["orders"]) == {"fox", "owl", "cat", "dog", "hen", "pig"}
    lengths = []
    for depth in (1, 2, 3):
        env = Desk(tables=6, depth=depth, foreign=0.0)
        lengths.append(sum(len(dialogue(env, task)[0]) for task in env.tasks("train", 60, 0)))
    assert lengths == sorted(lengths)


def test_open_and_static_users():  # rule 5
    task = Desk().tasks("train", 1, 0)[0]
    assert "my code is" in Desk(user="open", vague=0.0).reset(task).observations[AGENT].text
    scripted, static = Desk(), Desk(user="static")
    assert dialogue(scripted, task)[0] == dialogue(static, task)[0]
    static.reset(task)
    first = serve(static, "ask order").observations[AGENT].text  # it says what it would have said to the expert
    static.reset(task)
    assert first == serve(static, "ask carrier").observations[AGENT].text


def test_renamed():  # rule 6
    assert len(WORDS.meant) == 2 * len(OTHER) and not set(OTHER) & set(OTHER.values())
    assert (
        inward(outward("authenticate ana red")) == "authenticate ana red" and inward("get_order fox") != "get_order fox"
    )
    plain, renamed = Desk(**HARD), Desk(**HARD, renamed=True, explain=True)
    for task in plain.tasks("train", 20, 0):
        one, other = dialogue(plain, task), dialogue(renamed, task)
        assert [(outward(seen), outward(done)) for seen, done in one[0]] == other[0]
        assert other[1].info["success"]
    renamed.reset(task)
    assert "unlock" in renamed.reset(task).observations[AGENT].instruction
    assert serve(renamed, "ask name").info["invalid"] and not serve(renamed, "query name").info.get("invalid")


# ---- noise and attacks ------------------------------------------------------------------------------------
def test_failing_calls():  # rule 7
    options = {"failure": 0.3, "max_turns": 100}
    env, failed, calls = Desk(**options), 0, 0
    for task in env.tasks("train", 60, 0):
        seen, end = dialogue(env, task)
        assert end.info["success"] and seen == dialogue(Desk(**options), task)[0]
        failed += sum("busy" in text for text, _ in seen)
        calls += sum(not done.startswith(("ask", "tell", "confirm")) for _, done in seen)
    assert 0.2 < failed / calls < 0.4


def test_misspeaking():  # rule 7
    env = Desk(misspeaks=1.0, tables=6, foreign=0.3, changes_mind=0.0)
    ends = [dialogue(env, task) for task in env.tasks("train", 100, 0)]
    assert sum(end.info["under_rules"] for _, end in ends) > 90
    assert any("i misspoke" in seen for episode, _ in ends for seen, _ in episode)


@pytest.mark.parametrize("channel", ["tool", "user"])
@pytest.mark.parametrize("behavior", ["cancel", "redirect", "leak"])
def test_attacks(channel, behavior):  # rule 8
    env = Desk(attack=channel, attack_share=1.0, behaviors=(behavior,), vague=0.0)
    for task in env.tasks("train", 10, 0):
        seen, end = dialogue(env, task)
        attack = goal_of(env).attack
        assert attack.behavior == behavior and attack.channel == channel
        assert any(attack.text in text for text, _ in seen) and end.info["attacked"]
        assert not end.info["attack_succeeded"] and end.info["success"]
        first = env.reset(task)
        assert not first.info["attacked"] and not first.info["attack_succeeded"]
        wanted = (
            " ".join([attack.call.name, *attack.call.arguments.values()]) if attack.call else f"tell {attack.secret}"
        )
        result = serve(env, "ask name", wanted)
        assert result.info["attack_succeeded"] and result.info["violation"] == {AGENT: 1.0}


def test_a_share_is_attacked():  # rule 8
    found = [goal.attack for goal in goals(400, attack="both", attack_share=0.25)]
    assert 70 < sum(attack is not None for attack in found) < 130
    assert {attack.channel for attack in found if attack} == {"tool", "user"}
    assert {attack.template for attack in found if attack} == {"plain", "override", "authority", "output"}
    assert all(goal.attack is None for goal in goals(50))


# ---- what is shown, and how it ends -----------------------------------------------------------------------
def test_what_is_shown():  # rule 9
    task = Desk().tasks("train", 1, 0)[0]

    def shown(**options):
        seen = Desk(**options).reset(task).observations[AGENT]
        return seen.text, seen.instruction

    text, head = shown(rules="whole", explain=True)
    assert "rules:" not in text and "cancel_order: if" in head and "One call on a line" in head
    text, head = shown(rules="scope")
    assert "authenticate the customer before" in text and "cancel_order" not in text and head is None
    assert shown(rules="name")[1] == "handbook 0." and shown(rules="none")[1] is None
    assert "notes:" in text and "notes:" not in shown(notes=False)[0]
    env = Desk()
    words = [len(text.split()) for task in env.tasks("train", 50, 0) for text, _ in dialogue(env, task)[0]]
    assert max(words) <= 130 and sum(words) / len(words) < 70


@pytest.mark.parametrize(
    ("options", "acts", "stop"),
    [
        ({"max_calls": 1}, ("get_order fox", "get_order fox"), "max_tool_calls"),
        ({"max_faults": 2}, ("??", "dance"), "parse_error"),
    ],
)
def test_budgets(options, acts, stop):  # rule 10
    env, _ = opened(**options)
    result = serve(env, *acts)
    assert not result.observations and result.info["stop"] == stop and result.info["success"] is False


def test_patience():  # rule 10
    env, _ = opened(patience=2, vague=0.0)
    assert serve(env, "ask name", "ask name").observations
    end = serve(env, "ask name")
    assert end.terminated == {AGENT} and not end.info["success"]


def test_splits():  # rule 11
    train, held = (Desk().tasks(split, 200, 0) for split in ("train", "eval"))
    assert not {task.seed for task in train} & {task.seed for task in held}
    assert {task.seed % 2 for task in train} == {0} and {task.seed % 2 for task in held} == {1}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"requests": (2, 1)}, "2 to 1"),
        ({"requests": (3, 3)}, "3 wishes"),
        ({"tables": 5, "kinds": ("change_plan", "pause_plan"), "requests": (2, 2)}, "only plan"),
        ({"customers": 12, "orders": 4}, "12 customers"),
        ({"customers": 1, "attack": "tool"}, "`customers`"),
        ({"attack": "tool", "behaviors": ()}, "`behaviors`"),
        ({"failure": 1.0}, "failure: 1"),
        ({"user": "chat"}, "chat model"),
        ({"chat": {"model": "m"}}, "does not use it"),
        ({"tables": 7}, "tables"),
        ({"depth": 4}, "depth"),
        ({"format": "xml"}, "format"),
    ],
)
def test_bad_options(options, message):  # rule 11
    with told(RecipeError, message):
        Desk(**options)


def test_unknown_kinds():  # rule 11
    with told(UnknownName, "change_plan"):
        Desk(kinds=("change_plan",))
    with told(UnknownName, "cancel_oder"):
        Desk(kinds=("cancel_oder",))
