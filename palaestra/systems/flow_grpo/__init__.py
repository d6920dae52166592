"""AgentFlow (arXiv 2510.05592) divides a task among a planner, an executor, a verifier and a generator, which share a
growing memory. Only the planner is trained, inside the running team. Flow-GRPO standardizes the outcome of a
trajectory in its group and gives it to every turn of the planner. Here mean and deviation count each trajectory once;
`unit: row` counts planner turns, as the authors' code does, so that long trajectories weigh more. The executor's
command goes to the environment, which has the tools; in the recipe that is a calculator. A choice among several
tools, a judge model and realistic questions are not here.

`advantage.py` is the estimator. `agentflow.py` is the team program.
"""
