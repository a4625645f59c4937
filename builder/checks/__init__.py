"""What a finished image must satisfy: the table of checks, servers asked, numbers compared."""
