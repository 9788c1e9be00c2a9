"""Prove a draft, or name what is wrong with it.

``findings``: the nouns · ``catalogue``: every kind of fault.
"""
