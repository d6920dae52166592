"""ERA (arXiv 2510.12693) turns small vision-language models into embodied agents by supervised learning on three kinds
of prior data and online PPO afterwards. This folder has the online stage. There is one value per turn, generalized
advantage estimation over turns, and one advantage for all tokens of a response. A reward for new progress helps at
first and is then removed. Here the next turn is found by its number; the authors' code relies on the order of rows. The
prior data, the self-written summary in place of the history, and images are not here.

`advantage.py` is the estimator and `dense_then_sparse.py` the reward. `critic_warmup` is in
`palaestra/parts/critics.py`.
"""
