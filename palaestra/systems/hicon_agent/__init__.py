"""HiconAgent, history context-aware policy optimization. Long observations of which little is needed later, such
as screens: acting reads actions and the present only. Not where what was seen long ago decides, and no action
tells it.
"""
