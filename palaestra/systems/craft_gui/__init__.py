"""CRAFT-GUI (arXiv 2508.11360) trains agents that operate graphical interfaces. Tasks differ much in length, and an
outcome at the end tells little about single actions. Training goes in stages from short tasks to long ones, with a
share of earlier tasks kept. Each action is paid by rules for its form, its type and its argument, and a judge can
score what rules cannot check. There is no public code: the limits of the stages, the share of earlier tasks, the
rules for changing the stage and the weights are ours. Screenshots, a judge model and the questions about
understanding screens are not here.

`stages.py` is the sampler. `gui_action.py` is the reward of single actions.
"""
