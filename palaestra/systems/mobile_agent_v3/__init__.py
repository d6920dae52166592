"""Mobile-Agent-v3 (arXiv 2508.15144) trains GUI agents on tasks that are rarely solved, so most groups have no
success and no gradient. Trajectory-aware relative policy optimization gives all steps of an episode one advantage. In
a group without success it exchanges one episode for a stored success of the same task. Truncated importance weights
correct for the older policy that sampled it. The folder has no code of its own: the replay is
`palaestra/replay/selection.py`, the weights are in `palaestra/parts/importance.py`, and `grpo` is in
`palaestra/parts/estimators.py`. The penalty for malformed actions, the team of manager, worker, reflector and
notetaker, the data synthesis and the device farm are not here.
"""
