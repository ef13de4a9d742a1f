"""Worker process: listeners, endpoints, and the services that keep them current."""
