"""A preset, or a recipe with a model, run on this machine or written down for another one."""
