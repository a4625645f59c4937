"""From a recipe's name to an image with a verdict: gets names and options, gives records.

It joins ``plan``, ``images``, ``smoke`` and ``records``; everything above may call it.
"""
