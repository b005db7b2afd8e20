"""The packed implementations under test."""
