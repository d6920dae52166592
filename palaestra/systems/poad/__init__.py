"""POAD, policy optimization with action decomposition. Actions of several tokens, a discount below 1, and a critic
of tokens. With gamma 1 it is token-level PPO.
"""
