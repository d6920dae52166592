"""The slots of recipes, and what a part of any slot may declare about itself."""

from __future__ import annotations

from typing import Any

SLOTS: dict[str, str] = {
    "environment": "where agents act: tasks, observations, rewards",
    "verifier": "what a reply is worth, for the environment `dataset`",
    "policy": "what maps observations to actions",
    "context": "how a history becomes prompt tokens",
    "engine": "what generates the responses of language policies",
    "program": "who acts when in an episode",
    "reader": "what of a reply is the act: all of it, a tag, the last line, a tool call",
    "parser": "what a response means: a choice, a number",
    "tool": "what a role alone may call",
    "rollout": "how episodes are run",
    "experience": "what iterations learn from: play, files, a buffer",
    "sampler": "which tasks an iteration plays, and how",
    "strategy": "how plays become trajectories: forks, further groups, second attempts; a list composes",
    "reward": "rewards of the rows of a table",
    "selection": "which rows stay in the update",
    "advantage": "credit: one number for each row or token; a list composes",
    "weights": "factors per row or token, multiplied",
    "loss": "per-token policy loss",
    "regularizer": "further per-token terms: KL, entropy, value",
    "learner": "what improves policies from a batch; a list runs in order",
    "optimizer": "how gradients change the parameters",
}

STAGES = frozenset({"reward", "selection", "advantage", "weights"})  # slots between rollout and loss
SINGLE = frozenset({"one_agent", "one_act"})  # in `uses`: a single agent; episodes that end with the first act
MAY_BE_OBJECTS = {"tool"}  # `palaestra.tools.tool` makes an object of a function
MAY_HOLD_STATE = STAGES | {"sampler", "strategy", "learner"}

# Attributes that a part of any slot may declare on its function or class. They are read before the part is made or
# called. Each has the value here where a part does not declare it.
DECLARED: dict[str, Any] = {
    "runs": None,  # of a learner: a function of settings and a policy that returns the recipe's parts that it runs
    "provides": None,  # frozenset of the columns that it gives to tables; None: unknown
    "abilities": None,  # of an environment, their names (palaestra.data.abilities); of a policy, a function of options
    "outputs_with": None,  # of a policy: a function of options that returns the outputs which it has with them
    "model_size": None,  # of a policy: a function of options and its bases' sizes (palaestra.models.sizes.PolicySize)
    # Of any other part: a function of options, the policies' sizes by name, and the run's settings. It returns the
    # models which the part loads or copies (palaestra.models.sizes.LoadedModel).
    "loads": None,
    "stands_on": None,  # of a policy: a function of options that returns the name of the policy it is built on
    "elsewhere": None,  # of an engine: a function of options that says which other program generates
    "chat_model": False,  # of a policy: whether it is a chat model without a renderer, which must be told of tools
    "no_template": None,  # of a policy: a function of options that says why it has no chat template; None, if it has
    "fits": None,  # a function of options, settings and environment that raises if the part cannot work with them
    "one_act": False,  # of an environment: whether every episode ends with the first act
    "keeps_messages": False,  # of a context: whether a chat template gets its turns as messages, and so declares tools
    "small": {},  # options that make it small and quick, for a smoke run (palaestra.recipe.smoke)
    "ignores": (),  # keys that it does not read, from its own section: `workers` of a runner, `rollout.tasks` of files
    "called_per": "iteration",  # of a strategy: whether a call gets the plays of an iteration or of a "group"
    "forks": False,  # of a runner: whether episodes can branch off from others
    "opens": False,  # of a runner: whether it has `open()`, for asynchronous collection
    "lock_step": False,  # of a runner: whether all episodes go on together, so that none can wait for something
    "waits": False,  # of a policy: whether it waits for an engine or a server; of a program: for more than acts
    "roles": None,  # of a program: names, or functions of options that give names (palaestra.rollout.programs.acted_by)
    "demonstration": None,  # of a program: how a warm start plays it (palaestra.rollout.programs.demonstrated_by)
}
