"""Authorization: the ACL model, decisions, and the operations each API requires."""
