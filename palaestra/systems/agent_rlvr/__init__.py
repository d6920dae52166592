"""Agent-RLVR (arXiv 2506.11425) addresses tasks that a verifier can check but that the policy almost never solves. A
failed attempt is repeated with a teacher's guidance in the prompt. Direct preference optimization then makes
successful episodes likelier than failed ones of the same task. Here the guidance is removed from the prompt before
training, so that the policy needs no teacher later; `keep_guidance` leaves it in. The environment gives the guidance,
in the recipe by a rule and not by a language model. Software repositories with unit tests, the guided data set, and
the reward model that reranks candidates at test time are not here.

`second_attempt.py` is the strategy that plays second attempts. `preference.py` is the loss over pairs of episodes.
"""
