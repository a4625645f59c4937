"""A bake file and its contexts: recipes that ``docker buildx bake`` builds on any builder."""
