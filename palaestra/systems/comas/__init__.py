"""CoMAS (arXiv 2510.08529) trains agents on questions whose answers are not known. In each round every agent writes a
solution; for each solution one agent is chosen to criticize it and one to score it after reading both. The score is
the solver's reward, and one minus the score is the evaluator's; the scorer is only punished for a score that cannot
be read. Correct answers are used for reports and never for training. Each utterance is one sample for REINFORCE++.
The values are those of a public fork of the authors' code, except the learning rate. The recipe trains three small
models on sums; the paper's mathematics, code and science questions are not here.

`discussion.py` is the team program. `interaction.py` turns scores into rewards.
"""
