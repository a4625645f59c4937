"""A plan becomes images of the engine: gets a plan and settings, gives images with their names.

The pipeline calls it, and whoever builds an image again.
"""
