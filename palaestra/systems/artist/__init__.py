"""ARTIST. Tools that an answer needs, and a policy whose calls often fail or cannot be read. Not where calls
should be few: one call that goes well earns as much as ten.
"""
