"""Published runs: which run on a card, with how much context; started, or written down."""
