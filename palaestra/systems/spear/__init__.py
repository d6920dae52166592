"""SPEAR (arXiv 2509.22601) addresses sparse rewards with tools that a policy seldom uses at first. A bonus for tool
calls fades out, imitation of the policy's own good episodes fades in, and the loss drops a few of the tokens that
reduce entropy most. Its base is Dr.BoT (`dr_bot.yaml`), Dr. GRPO with filters. Here fresh and replayed tokens of a
mini-batch share one mean. The paper's code interpreter is not in the recipe.

`intrinsic_tool.py` is the bonus, `self_imitation.py` the replay, `imitation_schedule.py` its weight, `schedules.py` the
cosine curves, and `ppo_clip_cov.py` the loss. `widest_groups.py` selects groups with different results. `filters.py`
masks void, repetitive and unreadable episodes.
"""
