"""MARS, later MARSHAL (arXiv 2510.15414), trains language models by self-play in games of several turns. The players of
a game have different chances, so one baseline for all mixes a player's position with the quality of its moves. MARS
subtracts from the reward to go of a turn its mean over all turns of the same game and player in the batch. The mean
here is over turns; the authors' code takes it over distinct values (`center: unique`). The folder has no code of its
own: `mars` and the reward `game_shaping` are in `palaestra/parts/games.py`. The recipe plays three small games with a
small language model; transfer to mathematics and to multi-agent systems is not here.
"""
