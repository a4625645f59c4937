"""Presets: published runs of a recipe's image, as files: model, options, card, figures."""
