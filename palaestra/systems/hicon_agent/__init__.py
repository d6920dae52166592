"""HiconAgent (arXiv 2512.01763) addresses agents on screens, whose past observations are long and seldom needed. Its
method HCPO varies how many past observations are shown, compresses the history to past actions, and keeps the
compressed branch consistent with the uncompressed one. Here the tokens of past observations are left out at the input;
the authors drop hidden states from the 6th of 36 layers on. With `compress: true` a rollout shows no past observation,
and the sampled number applies to its twin only. Screenshots and the reward for click distance are not in the recipe.

`sampled_history.py` is the context, `strategy.py` adds a twin with the uncompressed history to each trajectory, and
`loss.py` is the loss of both branches.
"""
