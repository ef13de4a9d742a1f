"""Who may do what: the model, the decision, and what each API is asked for."""
