"""Preference data: from files of the published shapes to preference groups."""
