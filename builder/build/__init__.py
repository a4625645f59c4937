"""The story of a build: from a recipe to a verified image and its record."""
