"""Every input of a recipe is resolved; templates become Dockerfiles; both give the key."""
