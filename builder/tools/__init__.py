"""Access to Docker, git, registries, the web, the package index and files."""
