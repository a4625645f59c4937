"""Which presets run on a card: by its compute capability, its driver and its memory."""
