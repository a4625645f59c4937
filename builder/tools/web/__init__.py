"""HTTP: a client for untrusted servers, downloads, one retry policy, GitHub's API."""
