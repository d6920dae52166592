"""ARPO, agentic reinforced policy optimization. Tools or environments whose steps cost more than gradients: what
branches share is played once. It needs an environment that can be put back into an earlier state. Short
episodes share little.
"""
