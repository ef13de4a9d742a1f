"""What an operator asks at night: which sessions are open, whose, and what went wrong lately."""
