"""TLS contexts of both sides: certificates, trust, and their replacement."""
