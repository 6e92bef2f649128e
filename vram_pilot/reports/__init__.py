"""What is handed out of a session: one file for each format, written whole or not at all."""
