"""Turns messages and tools into token ids, and chooses the grammar and the settings for reading the output."""
