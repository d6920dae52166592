"""PPR, principle process reward with ReNorm. A judge scores each step and errs. The constant in each step gives
length a price: solved episodes gain by it.
"""
