"""GRPO (arXiv 2402.03300) removes the critic from PPO. Several responses to one task form a group, and the advantage of
a response is its return minus the group's mean, divided by the group's standard deviation. The loss is PPO's clipped
surrogate. Here there is no KL term unless the variant `grpo_kl.yaml` adds it, and a trajectory alone in its group gets
0, where the authors' code gives its raw return. The variant `grpo_process.yaml` standardizes the rewards of single
steps and sums them from each step to the end. The folder has no code of its own: `grpo` and `grpo_process` are in
`palaestra/parts/estimators.py`, and `ppo_clip` is in `palaestra/parts/losses.py`.
"""
