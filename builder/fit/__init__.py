"""Does a model fit on a card, with how much context: the engine itself, on a simulated card."""
