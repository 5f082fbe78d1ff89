"""The claims this project makes about itself, each one in a test."""
