"""TLS on both sides: certificates, trust, their replacement, and the transport."""
