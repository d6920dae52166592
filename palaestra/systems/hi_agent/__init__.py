"""Hi-Agent (arXiv 2510.14388) controls mobile devices with a planner that sets subgoals and an executor that carries
them out. Comparing whole sequences of subgoals is expensive. The foresight advantage compares only subgoals that were
tried from the same state, by their form, their execution and a judge's score for the state that they led to. One
decision is one group, so credit does not need the end of the episode. The weights of the three terms are ours, since we
do not know the paper's. Here the environment judges by rule. Devices, vision-language models and a model as judge are
not here.

`program.py` tries the subgoals of a state, `advantage.py` is the estimator, and `errands.py` is the environment, a
small town.
"""
