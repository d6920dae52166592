"""Truncated importance sampling between sampler and trainer. When what samples is not exactly what is trained:
another precision, other kernels, or older weights. It changes nothing where both agree.
"""
