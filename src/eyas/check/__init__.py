"""Prove a draft, or name what is wrong with it.

``findings``: the nouns · ``catalogue``: every kind of fault · ``run``: the levels in order · ``static``, ``flags``,
``replay``, ``search``, ``outside``: what they look at · ``conclude``: from all of it to one answer · ``repair``: what
can be mended without training · ``report``, ``html``: how it is shown.
"""
