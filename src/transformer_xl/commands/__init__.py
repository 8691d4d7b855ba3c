"""The entry points and what a person reads on the screen."""
