"""Where everything goes: old place → new place. Read by move.py; deleted with it once the layout has settled."""

from __future__ import annotations

# ---- systems: folder → rows of the old catalogue; the first is the system itself, the others are variants ----------
SYSTEMS: dict[str, list[str]] = {
    name: [name]
    for name in """
        rloo dr_grpo dr_mas at_grpo rae debate descendants shapley archer filtered_cloning mars cory pfsp comas
        self_consistency search_self_play adv_evo oprl m_grpo flow_grpo hrpo dcpo srgpo empg loop
        stratified_grpo salt adca_grpo t_ppo vl_dac turn_gae ppr ppo_max bnpo canon dgrpo e_grpo hi_agent
        mobile_agent_v3 dart gspo cispo artist grpo_tcr grpo_roc verl_tool mua_rl duration_aware
        decoupled_ppo truncated_importance scaling_inter craft_gui multi_turn_guide agent_rlvr inspo hicon_agent hapo
        muon success_window reinforce behavior_cloning
    """.split()
} | {
    "grpo": ["grpo", "grpo_kl", "grpo_process"],
    "ppo": ["ppo", "ppo_token", "ppo_action"],
    "reinforce_plus_plus": ["reinforce_plus_plus", "reinforce_plus_plus_baseline"],
    "gigpo": ["gigpo", "gigpo_similar"],
    "mact": ["mact", "role_mix"],
    "counterfactual": ["counterfactual", "counterfactual_replay"],
    "spa": ["spa", "equal_split"],
    "poad": ["poad", "ntpo"],
    "spear": ["spear", "dr_bot"],
    "dapo": ["dapo", "dapo_filtered"],
    "arpo": ["arpo", "aepo"],
    "kimi_rl": ["kimi_rl", "muon_clip"],
}
DROPPED_ROWS = {"stages"}  # parts that stand after an estimator: they are described as parts

S = "palaestra.systems"
A = "palaestra.advantages"
R = "palaestra.rewards"
W = "palaestra.weights"
L = "palaestra.losses"
D = "palaestra.data"
E = "palaestra.envs"
C = "palaestra.curriculum"
RO = "palaestra.rollout"
T = "palaestra.teams"

# ---- whole modules: old → new ---------------------------------------------------------------------------------------
MODULES: dict[str, str] = {
    # estimators of one system
    **{
        f"{A}.{name}": f"{S}.{name}"
        for name in """bnpo canon descendants empg gigpo loop rae salt srgpo stratified_grpo""".split()
    },
    f"{A}.adca_grpo": f"{S}.adca_grpo.advantage",
    f"{A}.hrpo": f"{S}.hrpo.advantage",
    f"{R}.step_judge": f"{S}.adca_grpo.step_judge",
    f"{A}.adv_evo": f"{S}.adv_evo.public_baseline",
    f"{R}.defense_schedule": f"{S}.adv_evo.defense_schedule",
    f"{E}.secrets": f"{S}.adv_evo.secrets",
    f"{A}.archer": f"{S}.archer.advantage",
    "palaestra.models.critics": f"{S}.archer.critics",
    f"{A}.filtered": f"{S}.filtered_cloning",
    f"{A}.dcpo": f"{S}.dcpo.advantage",
    "palaestra.contexts.editable": f"{S}.dcpo.editable",
    f"{RO}.curating": f"{S}.dcpo.curating",
    f"{W}.segment_sample": f"{S}.dcpo.segment_sample",
    f"{R}.resource_penalty": f"{S}.dcpo.resource_penalty",
    f"{D}.messages": f"{S}.descendants.messages",
    f"{D}.coalitions": f"{S}.shapley.coalitions",
    f"{R}.shapley": f"{S}.shapley",
    f"{A}.egae": f"{S}.t_ppo.egae",
    f"{W}.fresh": f"{S}.t_ppo.fresh",
    f"{E}.counting": f"{S}.t_ppo.counting",
    f"{A}.entropy_aware": f"{S}.arpo.entropy_aware",
    f"{A}.shared_prefix": f"{S}.arpo.shared_prefix",
    f"{L}.ppo_clip_kept": f"{S}.arpo.ppo_clip_kept",
    f"{RO}.branching": f"{S}.arpo.branching",
    f"{A}.flow_grpo": f"{S}.flow_grpo.advantage",
    f"{T}.agentflow": f"{S}.flow_grpo.agentflow",
    f"{A}.foresight": f"{S}.hi_agent.advantage",
    f"{RO}.foresight": f"{S}.hi_agent.program",
    f"{E}.errands": f"{S}.hi_agent.errands",
    f"{D}.similarity": f"{S}.gigpo.similarity",
    f"{A}.hapo": f"{S}.hapo.advantage",
    f"{L}.hapo": f"{S}.hapo.loss",
    f"{RO}.adaptive_temperature": f"{S}.hapo.adaptive_temperature",
    f"{A}.m_grpo": f"{S}.m_grpo.advantage",
    f"{R}.hierarchical": f"{S}.m_grpo.hierarchical",
    f"{D}.calls": f"{S}.m_grpo.calls",
    f"{T}.hierarchy": f"{S}.m_grpo.sub_agents",
    f"{A}.ntpo": f"{S}.poad.ntpo",
    f"{A}.poad": f"{S}.poad.advantage",
    f"{A}.oprl": f"{S}.oprl.advantage",
    f"{R}.implicit_process": f"{S}.oprl.implicit_process",
    f"{A}.ppr": f"{S}.ppr.advantage",
    f"{R}.renorm": f"{S}.ppr.renorm",
    f"{R}.noisy_judge": f"{S}.ppr.noisy_judge",
    f"{R}.running_scale": f"{S}.ppo_max",
    f"{A}.self_imitation": f"{S}.spear.self_imitation",
    f"{W}.imitation_schedule": f"{S}.spear.imitation_schedule",
    f"{D}.schedules": f"{S}.spear.schedules",
    f"{L}.ppo_clip_cov": f"{S}.spear.ppo_clip_cov",
    f"{R}.intrinsic_tool": f"{S}.spear.intrinsic_tool",
    f"{W}.repetition": f"{S}.spear.filters",
    f"{W}.unreadable": f"{S}.spear.filters",
    f"{W}.void_turns": f"{S}.spear.filters",
    "palaestra.selection.widest_groups": f"{S}.spear.widest_groups",
    f"{E}.navdist": f"{S}.srgpo.navdist",
    f"{A}.turn_gae": f"{S}.turn_gae.advantage",
    f"{R}.dense_then_sparse": f"{S}.turn_gae.dense_then_sparse",
    f"{A}.vl_dac": f"{S}.vl_dac.advantage",
    f"{L}.ppo_clip_guarded": f"{S}.vl_dac.ppo_clip_guarded",
    f"{E}.teambuilding": f"{S}.hrpo.teambuilding",
    f"{E}.teambuilding_graph": f"{S}.hrpo.teambuilding_graph",
    # the other halves of systems
    f"{R}.counterfactual": f"{S}.counterfactual",
    f"{T}.replayed": f"{S}.counterfactual.replayed",
    f"{R}.dense_normalized": f"{S}.multi_turn_guide",
    f"{R}.entity_credit": f"{S}.e_grpo",
    f"{R}.equal_split": f"{S}.spa.equal_split",
    f"{R}.progress": f"{S}.spa.progress",
    "palaestra.models.encoders": f"{S}.spa.encoders",
    f"{R}.gui_action": f"{S}.craft_gui.gui_action",
    f"{C}.stages": f"{S}.craft_gui.stages",
    f"{R}.interaction": f"{S}.comas.interaction",
    f"{T}.comas": f"{S}.comas.discussion",
    f"{R}.self_consistency": f"{S}.self_consistency",
    f"{R}.milestones": f"{S}.duration_aware.milestones",
    f"{W}.duration": f"{S}.duration_aware.duration",
    f"{E}.slowarm": f"{S}.duration_aware.slowarm",
    f"{D}.markers": f"{S}.duration_aware.markers",
    f"{R}.question_difficulty": f"{S}.search_self_play.question_difficulty",
    f"{RO}.question_pool": f"{S}.search_self_play.question_pool",
    f"{T}.proposer": f"{S}.search_self_play.proposer",
    f"{E}.inquiry": f"{S}.search_self_play.inquiry",
    f"{R}.token_budget": f"{S}.kimi_rl.token_budget",
    f"{L}.squared_objective": f"{S}.kimi_rl.squared_objective",
    f"{RO}.cooling": f"{S}.kimi_rl.cooling",
    "palaestra.optim.muon_clip": f"{S}.kimi_rl.muon_clip",
    f"{R}.tool_bonus": f"{S}.grpo_tcr",
    f"{R}.tool_penalties": f"{S}.verl_tool",
    f"{R}.tool_use": f"{S}.artist.tool_use",
    f"{R}.function_calls": f"{S}.artist.function_calls",
    f"{E}.tickets": f"{S}.artist.tickets",
    f"{W}.difficulty": f"{S}.dgrpo",
    f"{W}.uncertain_steps": f"{S}.dart.uncertain_steps",
    f"{C}.adaptive_rollouts": f"{S}.dart.adaptive_rollouts",
    f"{C}.growing_horizon": f"{S}.scaling_inter",
    f"{C}.success_window": f"{S}.success_window",
    "palaestra.selection.resample_on_correct": f"{S}.grpo_roc",
    f"{L}.cispo": f"{S}.cispo",
    f"{L}.dual_branch": f"{S}.hicon_agent.loss",
    f"{RO}.dual_branch": f"{S}.hicon_agent.strategy",
    "palaestra.contexts.sampled_history": f"{S}.hicon_agent.sampled_history",
    f"{L}.preference": f"{S}.agent_rlvr.preference",
    f"{RO}.second_attempt": f"{S}.agent_rlvr.second_attempt",
    f"{RO}.instruction_population": f"{S}.inspo",
    f"{T}.cory": f"{S}.cory.program",
    f"{RO}.role_exchange": f"{S}.cory.role_exchange",
    f"{T}.mact": f"{S}.mact",
    # parts that are classics, or that two systems use
    **{
        f"{A}.{name}": "palaestra.parts.estimators"
        for name in """dr_grpo dr_mas grpo grpo_process reinforce reinforce_plus_plus
            reinforce_plus_plus_baseline rloo""".split()
    },
    **{f"{A}.{name}": "palaestra.parts.filters" for name in "center clip_advantage whiten".split()},
    f"{A}.ppo": "palaestra.parts.critics",
    f"{A}.ppo_max": "palaestra.parts.critics",
    f"{A}.critic_warmup": "palaestra.parts.critics",
    f"{A}.mars": "palaestra.parts.games",
    f"{R}.game_shaping": "palaestra.parts.games",
    f"{L}.ppo_clip": "palaestra.parts.losses",
    f"{L}.gspo": "palaestra.parts.losses",
    f"{L}.reinforce": "palaestra.parts.losses",
    f"{L}.behavior_cloning": "palaestra.parts.losses",
    f"{L}.entropy": "palaestra.parts.regularizers",
    f"{L}.kl": "palaestra.parts.regularizers",
    f"{L}.value": "palaestra.parts.regularizers",
    f"{R}.environment": "palaestra.parts.rewards",
    f"{R}.outcome": "palaestra.parts.rewards",
    f"{R}.cut_outcome": "palaestra.parts.rewards",
    f"{R}.invalid_penalty": "palaestra.parts.rewards",
    f"{R}.overlong": "palaestra.parts.rewards",
    f"{R}.role_mix": "palaestra.parts.rewards",
    f"{D}.tool_calls": "palaestra.parts.tool_calls",
    f"{W}.overlong_filter": "palaestra.parts.masks",
    f"{W}.ones": "palaestra.parts.importance",
    f"{W}.truncated_importance": "palaestra.parts.importance",
    "palaestra.selection.constant_groups": "palaestra.parts.selections",
    "palaestra.selection.everything": "palaestra.parts.selections",
    "palaestra.selection.replay_success": "palaestra.replay.selection",
    f"{C}.uniform": "palaestra.parts.samplers",
    f"{C}.repeated": "palaestra.parts.samplers",
    f"{C}.training_set": "palaestra.parts.samplers",
    "palaestra.optim.adamw": "palaestra.parts.optimizers",
    "palaestra.optim.rate": "palaestra.parts.optimizers",
    "palaestra.optim.muon": "palaestra.parts.optimizers",
    "palaestra.optim.orthogonal": "palaestra.parts.optimizers",
    # one room uses it
    f"{A}.pipeline": "palaestra.training.credit",
    f"{W}.combine": "palaestra.training.factors",
    f"{D}.answers": f"{E}.kit.answers",
    f"{D}.entities": f"{E}.kit.entities",
    "palaestra.catalogue.places": "palaestra.recipe.places",  # and from there into the modules that need them
    # mathematics
    f"{D}.preferences": "palaestra.algebra.pairs",
    f"{D}.draws": "palaestra.algebra.draws",
    # conversations
    "palaestra.contexts.history": "palaestra.chat.history",
    "palaestra.contexts.render": "palaestra.chat.render",
    "palaestra.contexts.quoting": "palaestra.chat.quoting",
    # environments
    f"{E}.panels": f"{E}.kit.panels",
    f"{E}.single": f"{E}.kit.single",
    f"{E}.randomness": f"{E}.kit.randomness",
    f"{E}.elements": f"{E}.kit.elements",
    **{
        f"{E}.{name}": f"{E}.worlds.{name}"
        for name in """clinic code craft desk household memory_dialogue prover puzzles rasters searchqa shop tool_tasks
            travel webforms""".split()
    },
    **{f"{E}.{name}": f"{E}.adapters.{name}" for name in "textarena reasoning_gym miniwob trl_class rows".split()},
    f"{E}.gymnasium": f"{E}.adapters.gymnasium.world",
    f"{E}.gymnasium_text": f"{E}.adapters.gymnasium.text",
    f"{E}.pettingzoo": f"{E}.adapters.pettingzoo.world",
    f"{E}.pettingzoo_spaces": f"{E}.adapters.pettingzoo.spaces",
    f"{E}.babyai": f"{E}.adapters.babyai.world",
    f"{E}.babyai_expert": f"{E}.adapters.babyai.expert",
    f"{E}.textworld": f"{E}.adapters.textworld.world",
    f"{E}.textworld_games": f"{E}.adapters.textworld.games",
    f"{E}.textworld_play": f"{E}.adapters.textworld.play",
    f"{E}.scienceworld": f"{E}.adapters.scienceworld.world",
    f"{E}.scienceworld_server": f"{E}.adapters.scienceworld.server",
    f"{E}.openspiel": f"{E}.adapters.openspiel.world",
    f"{E}.openspiel_games": f"{E}.adapters.openspiel.games",
    f"{E}.openenv": f"{E}.adapters.openenv.world",
    f"{E}.openenv_links": f"{E}.adapters.openenv.links",
    f"{E}.verifiers": f"{E}.adapters.verifiers.world",
    f"{E}.verifiers_machine": f"{E}.adapters.verifiers.machine",
    f"{E}.export_gymnasium": f"{E}.adapters.exports.gymnasium",
    f"{E}.export_pettingzoo": f"{E}.adapters.exports.pettingzoo",
    f"{E}.export_spaces": f"{E}.adapters.exports.spaces",
    **{
        f"{E}.{name}": f"{E}.probes.{name}"
        for name in """rooms approach phrase toolcalc toolcalc_expressions hopsearch hopsearch_graph codefix
            twenty_questions relay sums signals flow uiform uiform_forms alignment games lengths""".split()
    },
}

# ---- modules that are parted: old → symbol → new; "" is where everything else goes ----------------------------------
SPLITS: dict[str, dict[str, str]] = {
    f"{D}.segments": {"Key": f"{D}.keys", "compact": f"{D}.keys", "": "palaestra.algebra.segments"},
    f"{D}.stages": {
        **{
            name: "palaestra.algebra.returns"
            for name in """total_return reward_to_go _shared_turns lambda_return _values _end_value _values_at
                _token_timeline _on_last_token token_rewards Estimate HALF_ULP""".split()
        },
        "modulate": f"{S}.empg",
        "": "palaestra.algebra.peers",
    },
    f"{D}.tokens": {
        **{
            name: "palaestra.algebra.aggregation"
            for name in "Aggregation unit_key coefficients aggregate _key _count _size".split()
        },
        "kl_estimate": "palaestra.algebra.divergence",
        "": f"{D}.tokens",
    },
}

# ---- names that would meet another of the same name in their new module: (old module, name) → new name --------------
NAMES: dict[tuple[str, str], str] = {}

# ---- head lines of modules that are made of several, or that are new ------------------------------------------------
HEADS: dict[str, str] = {
    "palaestra.algebra": "The mathematics that estimators and losses share: pure functions on tables and tokens.",
    "palaestra.algebra.segments": "Sums, means and ranks over the rows of a set, and the scan that runs backwards.",
    "palaestra.algebra.returns": "Returns of rows, trajectories and tokens, with and without a critic.",
    "palaestra.algebra.peers": "Comparison with peers: mean, deviation and leave-one-out over the rows of a set.",
    "palaestra.algebra.aggregation": "How losses per token become one number: the coefficient of every token.",
    "palaestra.algebra.divergence": "Estimates of the Kullback-Leibler divergence from log-probabilities per token.",
    "palaestra.data.keys": "Keys: which rows of a table belong to one set.",
    "palaestra.parts": "Parts that are classics, or that two or more systems use. Each file holds the parts of one kind.",
    "palaestra.parts.estimators": "Advantages that need no critic: GRPO and its relatives, and REINFORCE.",
    "palaestra.parts.filters": "What stands after an estimator: center, whiten, clip.",
    "palaestra.parts.critics": "Advantages from a critic: PPO with generalized advantage estimation, PPO-max, a warm-up.",
    "palaestra.parts.games": "Credit in games of several players: MARS's advantages and rewards for the length of a game.",
    "palaestra.parts.losses": "Policy losses per token: the clipped surrogate, GSPO, REINFORCE and behavior cloning.",
    "palaestra.parts.regularizers": "Terms beside the policy loss: entropy, divergence from a reference, the critic's error.",
    "palaestra.parts.rewards": "Rewards from what every environment tells: its own, the outcome, penalties, shares of roles.",
    "palaestra.parts.masks": "Masks: which tokens the loss leaves out.",
    "palaestra.parts.importance": "Factors for tokens that another policy drew.",
    "palaestra.parts.selections": "Which rows stay in the update.",
    "palaestra.parts.samplers": "Samplers: which tasks an iteration plays.",
    "palaestra.parts.optimizers": "Optimizers: AdamW and Muon, and how the learning rate moves.",
    "palaestra.systems": "Published systems. Each folder is one line of work: its parts, overlays, golden numbers, tests and studies.",
    "palaestra.systems.spear.filters": "What SPEAR and Dr.BoT leave out of the loss: void turns, repetitions, unreadable responses.",
    "palaestra.envs": "Environments: built-in worlds, adapters to other libraries, and small probes for studies.",
    "palaestra.envs.kit": "What environments are built with: tasks and panels, one agent, borrowed random state.",
    "palaestra.envs.worlds": "Worlds that are built in. Each is a part, found by its name.",
    "palaestra.envs.adapters": "Environments of other libraries. Each is a part, found by its name.",
    "palaestra.envs.probes": "Small worlds that studies of several systems use to look at one thing.",
    "palaestra.chat": "Conversations to token ids: templates, contexts and how a history is shown.",
}

# ---- recipes: old name below recipes/ → new name; `gigpo/method.yaml` lies in palaestra/systems/gigpo ------------------
RECIPES: dict[str, str] = {
    f"methods/{row}.yaml": f"{folder}/{'method' if place == 0 else row}.yaml"
    for folder, rows in SYSTEMS.items()
    for place, row in enumerate(rows)
} | {
    "teams/mact.yaml": "mact/recipe.yaml",
    "teams/debate.yaml": "debate/recipe.yaml",
    "teams/agentflow.yaml": "flow_grpo/recipe.yaml",
    "teams/sub_agents.yaml": "m_grpo/recipe.yaml",
    "teams/desk_attack.yaml": "adv_evo/desk_attack.yaml",
    "teams/mars_suite.yaml": "mars/recipe.yaml",
    "setups/sums.yaml": "comas/sums.yaml",
    "setups/inquiry.yaml": "search_self_play/inquiry.yaml",
    "setups/secrets.yaml": "adv_evo/secrets.yaml",
    "setups/tickets.yaml": "artist/tickets.yaml",
    "setups/counting.yaml": "t_ppo/counting.yaml",
    "setups/errands.yaml": "hi_agent/errands.yaml",
    "setups/navdist.yaml": "srgpo/navdist.yaml",
    "setups/slowarm.yaml": "duration_aware/slowarm.yaml",
    "setups/teambuilding.yaml": "hrpo/teambuilding.yaml",
}

# ---- golden numbers: file → the system that its cases of shared parts belong to; others stay in tests/golden ----------
GOLDEN: dict[str, str] = {
    name: name
    for name in """agent_rlvr archer arpo bnpo canon cispo comas cory dapo dcpo hapo hicon_agent multi_turn_guide oprl
        rae search_self_play spear""".split()
} | {
    "aepo": "arpo",
    "difficulty": "dgrpo",
    "durations": "duration_aware",
    "egae": "t_ppo",
    "foresight": "hi_agent",
    "squared_objective": "kimi_rl",
}

# ---- tests: old file → new file; other files of these folders go by TEST_ROOMS ---------------------------------------
_OF_ONE = {
    "advantages": """adv_evo archer bnpo canon dcpo egae:t_ppo foresight:hi_agent:advantage self_imitation:spear
        branch_filters:arpo""",
    "chat": "",
    "contexts": "editable:dcpo",
    "data": "coalitions:shapley similarity:gigpo",
    "envs": """counting:t_ppo errands:hi_agent navdist:srgpo secrets:adv_evo slowarm:duration_aware
        teambuilding:hrpo tickets:artist""",
    "losses": """cispo hapo:hapo:loss ppo_clip_cov:spear ppo_clip_guarded:vl_dac ppo_clip_kept:arpo
        squared_objective:kimi_rl""",
    "models": "critics:archer",
    "rewards": """entity_credit:e_grpo implicit_process:oprl intrinsic_tool:spear progress:spa step_judge:adca_grpo
        token_budget:kimi_rl""",
    "rollout": """adaptive_temperature:hapo branching:arpo foresight:hi_agent:program question_pool:search_self_play""",
    "selection": "resample_on_correct:grpo_roc",
    "teams": """agentflow:flow_grpo comas cory hierarchy:m_grpo:sub_agents mact proposer:search_self_play
        replayed:counterfactual""",
    "weights": "difficulty:dgrpo duration:duration_aware fresh:t_ppo",
}
TESTS: dict[str, str] = {}
for _room, _names in _OF_ONE.items():
    for _entry in _names.split():
        _stem, _, _rest = _entry.partition(":")
        _system, _, _new = _rest.partition(":")
        _system = _system or _stem
        TESTS[f"tests/{_room}/test_{_stem}.py"] = f"palaestra/systems/{_system}/test_{_new or _stem}.py"
TESTS |= {
    "tests/data/test_stages.py": "tests/algebra/test_stages.py",
    "tests/data/test_segments.py": "tests/algebra/test_segments.py",
    "tests/data/test_draws.py": "tests/algebra/test_draws.py",
    "tests/data/test_answers.py": "tests/envs/kit/test_answers.py",
    "tests/data/test_entities.py": "tests/envs/kit/test_entities.py",
}
TEST_ROOMS: dict[str, str] = {
    f"tests/{room}": "tests/parts" for room in "advantages losses weights rewards selection curriculum optim".split()
} | {"tests/contexts": "tests/chat"}
