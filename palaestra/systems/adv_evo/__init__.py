"""AdvEvo-MARL (arXiv 2510.01586) trains attacking and defending agents against each other, so that safety becomes
part of the defenders and needs no separate guard. All agents of one team share a public baseline, the mean of their
returns, because each agent alone has few episodes. There was no code to read: the formula follows the paper's text,
and the weights of the defenders' reward are ours. `method.yaml` also whitens inside each team, which subtracts the
team's mean once more. The game here protects a secret number; the jailbreak texts and the tree topology of the paper
are not here.

`public_baseline.py` is the estimator, `defense_schedule.py` is the defenders' reward, and `secrets.py` is the game.
"""
