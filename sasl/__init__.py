"""Who is this, and until when? Pure state machines: bytes in, bytes out, time passed in."""
