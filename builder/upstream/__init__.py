"""What moved upstream: newer commits, patches that still apply, nights, bisects."""
