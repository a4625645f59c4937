"""The speed of a server; this machine, checked and set up; the matrix of CI."""
