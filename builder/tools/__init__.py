"""What is outside of builder: Docker, git, registries, the web, the package index, files."""
