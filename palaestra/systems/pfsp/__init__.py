"""Prioritized fictitious self-play comes from AlphaStar (Vinyals et al. 2019, doi:10.1038/s41586-019-1724-z). A policy
that only plays against its present self can go through the same strategies again and again and forget how to beat
earlier ones. Some games are therefore played against frozen earlier versions. A version is sampled more often the
harder it is to beat, or the more even its games with the learner are. Here each player of a game has a baseline of its
own, the estimator `mars` in `palaestra/parts/games.py`. AlphaStar's league with its exploiter agents and its imitation
of human games are not here.

`self_play.py` is the strategy, and `opponents.py` is the pool of earlier versions.
"""
