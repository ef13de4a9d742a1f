"""Pages and tables of docs/, written from what the code declares."""
