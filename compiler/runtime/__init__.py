"""What runs on the user's machine: launchers, the program loader, the interpreter."""
