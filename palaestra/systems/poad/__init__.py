"""POAD (arXiv 2405.15821) addresses actions of several tokens. If each token is a time step with a discount below 1,
a long phrase is worth less than a short one for the same action; if the whole action is one step, its tokens have no
credit of their own. POAD takes temporal differences over tokens and discounts between actions only, so the optimum
over tokens is the optimum over actions. Here advantages are standardized over the batch, not over each mini-batch.
TWOSOME's normalization over admissible actions, used by a comparator of the paper, is not here.

`advantage.py` is POAD. `ntpo.py` is the comparator NTPO, which discounts at every token (overlay `ntpo.yaml`).
"""
