"""What the user sees, and the HTTP surface: routes, the events stream, the accordion and the tab."""
