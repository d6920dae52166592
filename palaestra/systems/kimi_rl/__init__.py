"""The squared objective of Kimi K1.5 and K2. Where a clip is not wanted and several updates are made on each
batch: the pull back to the old policy grows with the distance. The learning rate must fit the temperature,
which the gradient carries as a factor.
"""
