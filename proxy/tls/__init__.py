"""TLS on both sides: what is shown and trusted, how it is replaced, and the bytes themselves."""
