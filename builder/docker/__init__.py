"""The only room that talks to Docker: the engine, buildx, containers, blobs."""
