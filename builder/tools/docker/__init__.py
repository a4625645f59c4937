"""The Docker engine, buildx, containers, and the blobs of images."""
