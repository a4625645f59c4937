"""git: mirrors of repositories, the trees made of them, and bisection."""
