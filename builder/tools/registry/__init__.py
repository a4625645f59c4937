"""Registries (OCI distribution specification 1.1), Docker Hub's API, logins and cosign."""
