"""The inputs of a plan, fetched, verified and patched below a work directory."""
