"""CoMAS, co-evolving multi-agent systems. Questions without known answers, and agents who tell right from wrong
more often than they are right. Not where the scorer is at chance: what it says is all there is to learn from.
"""
